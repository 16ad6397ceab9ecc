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
from salf.engines.base import Engine, Network
from salf.engines.spread import TRIES, Computed, Crew, Piece, computed

SHARES = 4  # in which a node's core gets its pieces of a round
ANSWER = 5.0  # seconds that a worker has to answer
AHEAD = 2  # shares for each core that may be ready before their turn


class NodeCrew(Crew):
    """The workers of an engine, one on every core of the cluster that is free at the start.

    Model and data reach a node once, weights once a round. What the users of a piece add up to
    comes back, and pieces are added in their order, so that results are those of one machine.
    """

    def __init__(self, engine: Engine, cores: int) -> None:
        if engine.device.type != "cpu":
            raise SalfError(
                f"the users of a round are shared among processors, not with {engine.device}: set "
                "device to cpu, or leave out the cluster."
            )
        super().__init__(engine)
        self._cores = cores
        self._seats: list[Any] = []
        self._known: dict[int, tuple[Any, Any]] = {}  # keeps what seats are made of in Ray's store

    def _is_there(self, engine: Engine) -> bool:
        if not self._seats:
            self._sit_down(engine)
            engine.why += f"; {self._cores} cores of a cluster share the users of a round"
        return True

    def end(self) -> None:
        """Give the cores back."""
        for seat in self._seats:
            ray.kill(seat)
        self._seats = []

    def _sit_down(self, engine: Engine) -> None:
        parts = type(engine), engine.model, engine.layers, engine.loss, engine.rows_of
        made = packed(parts, self._known)
        actor: Any = ray.remote
        start = actor(num_cpus=1, scheduling_strategy="SPREAD")(Seat).remote
        self._seats = [start(*made) for _ in range(self._cores)]
        try:
            ray.get([seat.is_there.remote() for seat in self._seats])
        except ray.exceptions.RayError as error:
            reason = in_one_line(error, last=True)
            raise SalfError(f"the cluster cannot compute users: {reason}.") from None

    def computed(
        self, engine: Engine, network: Network, pieces: Sequence[Piece]
    ) -> Iterator[Computed]:
        weights = ray.put({n: each.detach().clone() for n, each in engine.weights.items()})
        news = pickle.dumps(network.news)
        size = -(-len(pieces) // (SHARES * len(self._seats)))
        shares = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        todo, tries = list(range(len(shares))), Counter[int]()
        idle, pending, ready = [*self._seats], dict[Any, tuple[int, Any]](), dict[int, Any]()
        for turn in range(len(shares)):
            while turn not in ready:
                while idle and todo and todo[0] < turn + AHEAD * len(self._seats):
                    at, seat = todo.pop(0), idle.pop()
                    call = seat.compute.remote(weights, news, pickle.dumps(shares[at]))
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
            for found in ready.pop(turn):
                if isinstance(found, BaseException):
                    raise found
                yield found


def _is_there(seat: Any) -> bool:
    """Whether a worker that has nothing to do answers."""
    try:
        ray.get(seat.is_there.remote(), timeout=ANSWER)
    except ray.exceptions.RayError:
        return False
    return True


class Seat:
    """A worker on a node: an engine that computes one piece at a time, on one thread."""

    def __init__(self, packed: bytes, tensors: list[Any]) -> None:
        torch.set_num_threads(1)
        kind, model, layers, loss, rows_of = Unpacker(io.BytesIO(packed), tensors).load()
        self.engine = kind(model, layers, loss)
        self.engine.rows_of = rows_of
        for tensor in self.engine.weights.values():
            tensor.data = tensor.data.clone()  # what comes from Ray's store is shared
        model.train()

    def is_there(self) -> None:
        """Answer."""

    def compute(
        self, weights: dict[str, Tensor], news: bytes, pieces: bytes
    ) -> list[Computed | BaseException]:
        """What some pieces add up to."""
        own = self.engine.weights
        for name, tensor in weights.items():
            own[name].data.copy_(tensor)
        network = Network.of(own, pickle.loads(news))
        found: list[Computed | BaseException] = []
        for piece in pickle.loads(pieces):
            try:
                found.append(computed(self.engine, network, piece))
            except Exception as error:  # whatever somebody else's code raises
                return [*found, portable(error)]
        return found
