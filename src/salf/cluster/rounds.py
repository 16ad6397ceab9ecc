"""The users of a round on the nodes of a Ray cluster; on one machine: engines/spread.py."""

import io
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
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
ANSWER = 5.0  # seconds that a worker has to answer
AHEAD = 2  # pieces for each core that may be ready before their turn

Computed = list[tuple[int, dict[str, Tensor] | BaseException, float]]  # place, update, loss


class NodeCrew(Crew):
    """The workers of an engine, one on every core of the cluster that is free at the start.

    Model and data reach a node once, weights once a round. Each user's update comes back by itself,
    and they are added in the order of the users, so that results are those of one machine.
    """

    def __init__(self, engine: Engine, rows_of: RowsOf, cores: int) -> None:
        if engine.device.type != "cpu":
            raise SalfError(
                f"the users of a round are shared among processors, not with {engine.device}: set "
                "device to cpu, or leave out the cluster."
            )
        super().__init__(engine, rows_of)
        self._cores = cores
        self._seats: list[Any] = []
        self._known: dict[int, tuple[Any, Any]] = {}  # keeps what seats are made of in Ray's store

    def compute(
        self, engine: Engine, group: Group, network: Network, rows: Rows, add: Add, keep: bool
    ) -> float:
        if network.draws is None:
            return super().compute(engine, group, network, rows, add, keep)
        if not self._seats:
            self._sit_down(engine)
            engine.why += f"; {self._cores} cores of a cluster share the users of a round"
        return self.share(engine, group, network, add, keep)

    def end(self) -> None:
        """Give the cores back."""
        for seat in self._seats:
            ray.kill(seat)
        self._seats = []

    def _sit_down(self, engine: Engine) -> None:
        made = packed((engine.model, engine.layers, engine.loss, self.rows_of), self._known)
        actor: Any = ray.remote
        start = actor(num_cpus=1, scheduling_strategy="SPREAD")(Seat).remote
        self._seats = [start(*made) for _ in range(self._cores)]
        try:
            ray.get([seat.is_there.remote() for seat in self._seats])
        except ray.exceptions.RayError as error:
            reason = in_one_line(error, last=True)
            raise SalfError(f"the cluster cannot compute users: {reason}.") from None

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
                    lost = [seat, *(each for each in idle if not _is_there(each))]
                    self._seats = [each for each in self._seats if each not in lost]
                    idle = [each for each in idle if each not in lost]
                    if not self._seats:
                        self._sit_down(engine)
                        idle = [*self._seats]
            for place, update, loss in ready.pop(turn):
                if isinstance(update, BaseException):
                    raise update
                yield place, update, loss


def _is_there(seat: Any) -> bool:
    """Whether a worker that has nothing to do answers."""
    try:
        ray.get(seat.is_there.remote(), timeout=ANSWER)
    except ray.exceptions.RayError:
        return False
    return True


class Seat:
    """A worker on a node: an engine that computes one user at a time, on one thread."""

    def __init__(self, packed: bytes, tensors: list[Any]) -> None:
        torch.set_num_threads(1)
        model, layers, loss, rows_of = Unpacker(io.BytesIO(packed), tensors).load()
        self.engine = LoopEngine(model, layers, loss)
        self.crew = Crew(self.engine, rows_of)
        for tensor in self.engine.weights.values():
            tensor.data = tensor.data.clone()  # what comes from Ray's store is shared
        model.train()

    def is_there(self) -> None:
        """Answer."""

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
