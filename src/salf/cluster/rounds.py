"""The users of a round on the nodes of a Ray cluster; on one machine: engines/spread.py."""

import io
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import ray
import torch
from torch import Tensor

from salf.cluster.objects import Unpacker, packed
from salf.common.errors import SalfError, in_one_line, portable
from salf.engines.base import Add, Engine, LoopEngine, Network, Rows, RowsOf, Weights
from salf.engines.spread import TRIES, Crew, UserTask
from salf.methods import Group

PIECES = 4  # in which a node's core gets its users of a round
AHEAD = 2  # pieces for each core that may be ready before their turn

Computed = list[tuple[int, dict[str, Tensor] | BaseException, float]]  # place, update, loss


class NodeCrew(Crew):
    """The workers of an engine, one on every core of the cluster that is free at the start.

    Model and data reach a node once, weights once a round. Each user's update comes back by itself,
    and they are added in the order of the users, so that results are those of one machine.
    """

    def __init__(self, engine: Engine, rows_of: RowsOf, cores: int) -> None:
        super().__init__(engine, rows_of)
        known: dict[int, tuple[Any, Any]] = {}
        made = packed((engine.model, engine.layers, engine.loss, rows_of), known)
        actor: Any = ray.remote
        self._start = partial(actor(num_cpus=1, scheduling_strategy="SPREAD")(Seat).remote, *made)
        self._seats = [self._start() for _ in range(cores)]
        engine.why += f"; {cores} cores of a cluster share the users of a round"

    def compute(
        self, engine: Engine, group: Group, network: Network, rows: Rows, add: Add, keep: bool
    ) -> float:
        if network.draws is None:
            return super().compute(engine, group, network, rows, add, keep)
        return self.share(engine, group, network, add, keep)

    def updates(
        self, engine: Engine, network: Network, tasks: Sequence[UserTask]
    ) -> Iterator[tuple[int, Weights, float]]:
        weights = ray.put({n: each.detach().clone() for n, each in engine.weights.items()})
        news = pickle.dumps(network.news)
        size = -(-len(tasks) // (PIECES * len(self._seats)))
        pieces = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        todo, tries = list(range(len(pieces))), Counter[int]()
        idle, pending, ready = [*self._seats], dict[Any, tuple[int, Any]](), dict[int, Computed]()
        for turn in range(len(pieces)):
            while turn not in ready:
                while idle and todo and todo[0] < turn + AHEAD * len(self._seats):
                    at, seat = todo.pop(0), idle.pop()
                    call = seat.compute.remote(weights, news, pickle.dumps(pieces[at]))
                    pending[call] = at, seat
                (call,), _ = ray.wait(list(pending), num_returns=1)
                at, seat = pending.pop(call)
                try:
                    ready[at] = ray.get(call)
                    idle.append(seat)
                except ray.exceptions.RayTaskError as error:
                    raise SalfError(f"a node failed: {in_one_line(error, last=True)}.") from None
                except ray.exceptions.RayError:  # it was lost with its node or process
                    tries[at] += 1
                    if tries[at] == TRIES:
                        raise SalfError(
                            f"users of a round were lost {TRIES} times with their node."
                        ) from None
                    todo = sorted([at, *todo])
                    self._seats.remove(seat)
                    if not self._seats:
                        self._seats = [self._start()]
                        idle = [*self._seats]
            for place, update, loss in ready.pop(turn):
                if isinstance(update, BaseException):
                    raise update
                yield place, update, loss


class Seat:
    """A worker on a node: an engine that computes one user at a time, on one thread."""

    def __init__(self, packed: bytes, tensors: list[Any]) -> None:
        torch.set_num_threads(1)
        model, layers, loss, rows_of = Unpacker(io.BytesIO(packed), tensors).load()
        self.engine = LoopEngine(model, layers, loss)
        self.crew = Crew(self.engine, rows_of)
        model.train()

    def compute(self, weights: dict[str, Tensor], news: bytes, tasks: bytes) -> Computed:
        """The updates of some users."""
        own = self.engine.weights
        for name, tensor in weights.items():
            own[name].data.copy_(tensor)
        network = Network.of(own, pickle.loads(news))
        found: Computed = []
        for task in pickle.loads(tasks):
            try:
                update, loss = self.crew.computed(self.engine, network, task)
            except Exception as error:  # whatever somebody else's code raises
                return [*found, (task.place, portable(error), 0.0)]
            found.append((task.place, {n: each.clone() for n, each in update.items()}, loss))
        return found
