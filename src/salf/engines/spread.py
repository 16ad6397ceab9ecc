"""The users of a round on all cores: worker processes compute some users at a time.

Workers are copies of this process (forked), so that model and data are there already, and read the
weights of a round from shared memory. Users are computed in pieces, on one thread each, and what a
piece adds up to is added in the order of the pieces: the result does not depend on the number of
workers, bit for bit. Where an aggregate needs each user's own update, a piece is one user.
"""

import multiprocessing
import pickle
import signal
import sys
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from salf.common.errors import SalfError, portable
from salf.common.process import uninterrupted
from salf.core.aggregate import Held, LayerwiseAggregate
from salf.core.arrivals import Ints
from salf.core.rules import State
from salf.engines.base import Engine, Network, Rows, Weights
from salf.methods import Group

WORTH = 0.05  # seconds of a round from which on workers pay
AHEAD = 2  # pieces that a worker is given at a time: it has the next one when it is done
SLOTS = 4  # pieces that a worker may have ready, while those before them are computed
TRIES = 3  # how often a piece is computed whose worker dies
LINE = 64  # bytes: where tensors begin in shared memory

Shapes = Mapping[str, torch.Size]


class Piece(NamedTuple):
    """Users that one process computes, and adds up."""

    place: int
    group: Group
    own: dict[int, State]
    slot: int = 0


class Computed(NamedTuple):
    """What the users of a piece add up to, how many reached each layer, and their losses' sum."""

    sums: Weights
    reached: Ints
    loss: float


class _Adding(LayerwiseAggregate):
    """Sums of tensors as they are: those of a narrow network stay narrow."""

    def add_sum(self, update: Weights, *more: Any, held: Held | None = None) -> None:
        super().add_sum(update, *more)


class Crew:
    """The workers of an engine: one for each thread of PyTorch, unless told otherwise.

    They are started after the first round that takes long enough.
    """

    def __init__(self, engine: Engine) -> None:
        self.workers: list[_Worker] = []
        self._count, self._due = engine.workers or torch.get_num_threads(), engine.workers > 0
        inside = multiprocessing.parent_process() is not None  # of a pool, which uses all cores
        on_cpu = all(tensor.device.type == "cpu" for tensor in engine.weights.values())
        self._possible = sys.platform == "linux" and on_cpu and not inside and self._count > 1
        weakref.finalize(self, _end, self.workers)

    def compute(
        self,
        engine: Engine,
        group: Group,
        network: Network,
        rows: Rows,
        aggregate: LayerwiseAggregate,
    ) -> float:
        """Add the updates of a group's users piece by piece; return the sum of their losses."""
        alone, pieces, start, total = aggregate.separate, list[Piece](), perf_counter(), 0.0
        columns = engine.pieces(group, rows, alone)
        for place, some in enumerate(columns):
            each = group.of_columns(some)
            if alone:  # its sum is the update itself
                each = replace(each, weights=(each.weights > 0).astype(float))
            pieces.append(Piece(place, each, {u: network.own(u) for u in each.users.tolist()}))
        if network.draws is not None and self._is_there(engine):
            found = self.computed(engine, network, pieces)
        else:
            found = (computed(engine, network, piece, rows) for piece in pieces)
        try:
            with one_thread():  # as in a worker; a second one would wait in a loop, on its core
                for some, (sums, reached, loss) in zip(columns, found, strict=True):
                    c, total = group.weights[:, some], total + loss
                    if alone:
                        kept = {name: each.clone() for name, each in sums.items()}
                        user = int(group.users[some[0]])
                        aggregate.add(kept, c[:, 0], held=network.held, user=user)
                    else:
                        aggregate.add_sum(sums, None, reached, c.sum(axis=1), network.held)
        except BaseException:  # workers are in the middle of something
            with uninterrupted():  # by a second Ctrl-C
                self.end()
            raise
        self._due |= perf_counter() - start > WORTH
        return total

    def end(self) -> None:
        """End the workers; they are started again if there is more to do."""
        _end(self.workers)

    def _is_there(self, engine: Engine) -> bool:
        """Whether there are workers: they are started when they are due."""
        if not self.workers and self._possible and self._due:
            self._weights = _Shared(engine.weights)
            for _ in range(self._count):
                worker = _Worker(engine.weights)
                self._begin(worker, engine)
                self.workers.append(worker)
            engine.why += f"; {self._count} processes share the users of a round"
        return bool(self.workers)

    def computed(
        self, engine: Engine, network: Network, pieces: Sequence[Piece]
    ) -> Iterator[Computed]:
        """What was computed, in order; its tensors are valid until the next one's are."""
        self._weights.fill(engine.weights)
        news = pickle.dumps(network.news)
        for worker in self.workers:
            worker.send(news)
        todo, tries = deque(pieces), Counter[int]()
        ready: dict[int, tuple[_Worker, int, Shapes, Ints, float]] = {}
        for turn in range(len(pieces)):
            while turn not in ready:
                for worker in self.workers:
                    while todo and worker.free and len(worker.tasks) < AHEAD:
                        worker.give(todo.popleft())
                by_pipe = {worker.pipe: worker for worker in self.workers}
                for pipe in wait(list(by_pipe)):  # has something to say, or died
                    worker = by_pipe[pipe]  # type: ignore[index]
                    try:
                        place, shapes, *more = worker.pipe.recv()
                    except (EOFError, ConnectionError):  # it died
                        lost = [worker.tasks[place] for place in sorted(worker.tasks)]
                        tries.update(task.place for task in lost)
                        for place, count in tries.items():
                            if count == TRIES:
                                user = int(pieces[place].group.users[0])
                                raise SalfError(
                                    f"the process that computes user {user} died {TRIES} times "
                                    "(killed, or out of memory): fewer workers need less memory."
                                ) from None
                        todo.extendleft(reversed(lost))
                        self._begin(worker, engine)
                        worker.send(news)
                        continue
                    if isinstance(shapes, BaseException):
                        raise shapes
                    ready[place] = worker, worker.tasks.pop(place).slot, shapes, *more
            worker, slot, shapes, reached, loss = ready.pop(turn)
            yield Computed(worker.slots[slot].of(shapes), reached, loss)
            worker.free.append(slot)

    def _begin(self, worker: "_Worker", engine: Engine) -> None:
        """Start a worker's process, a new one if there was one."""
        others = [each.pipe for each in self.workers if each is not worker]
        worker.begin(engine, self, self._weights, others)


class _Shared:
    """Tensors as large as these, in memory that processes share."""

    def __init__(self, like: Weights) -> None:
        sizes = [-(-tensor.nbytes // LINE) * LINE for tensor in like.values()]
        memory = torch.empty(max(1, sum(sizes)), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._flat = {
            name: part[: tensor.nbytes].view(tensor.dtype)
            for (name, tensor), part in zip(like.items(), memory.split(sizes), strict=False)
        }

    def of(self, shapes: Shapes) -> dict[str, Tensor]:
        """The tensors of these names; narrow networks have smaller ones."""
        return {n: self._flat[n][: shape.numel()].view(shape) for n, shape in shapes.items()}

    def fill(self, tensors: Weights) -> Shapes:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        for name, place in self.of(shapes).items():
            place.copy_(tensors[name].detach())
        return shapes


class _Worker:
    """A worker as the parent sees it."""

    process: BaseProcess
    pipe: Connection

    def __init__(self, like: Weights) -> None:
        self.slots = [_Shared(like) for _ in range(SLOTS)]
        self.free = list(range(SLOTS))
        self.tasks: dict[int, Piece] = {}  # under way, by place

    def begin(
        self, engine: Engine, crew: Crew, weights: _Shared, others: Sequence[Connection]
    ) -> None:
        self.free += [task.slot for task in self.tasks.values()]
        self.tasks.clear()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        inherited = [self.pipe, *others]
        arguments = engine, crew, weights, self.slots, theirs, inherited
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Piece) -> None:
        self.tasks[task.place] = task._replace(slot=self.free.pop())
        self.send(pickle.dumps(self.tasks[task.place]))

    def send(self, message: bytes) -> None:
        with suppress(ConnectionError):  # it died: its pipe says so when it is read
            self.pipe.send_bytes(message)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # it has nothing to lose
        worker.process.join()
        worker.pipe.close()
    workers.clear()


def _work(
    engine: Engine,
    crew: Crew,
    weights: _Shared,
    slots: Sequence[_Shared],
    pipe: Connection,
    inherited: Sequence[Connection],
) -> None:
    """Compute users until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # or the ends of the parent would stay open when it dies
        other.close()
    torch.set_num_threads(1)
    engine.model.train()
    shapes = {name: tensor.shape for name, tensor in engine.weights.items()}
    for name, place in weights.of(shapes).items():
        engine.weights[name].data = place
    network = Network(engine.weights)
    try:
        while True:
            news = pickle.loads(pipe.recv_bytes())
            if not isinstance(news, Piece):
                network = Network.of(engine.weights, news)
                continue
            try:
                found = computed(engine, network, news)
                done = slots[news.slot].fill(found.sums), found.reached, found.loss
                pipe.send((news.place, *done))
            except Exception as error:  # whatever somebody else's code raises
                pipe.send((news.place, portable(error)))
    except (EOFError, ConnectionError):
        return


def computed(engine: Engine, network: Network, piece: Piece, rows: Rows | None = None) -> Computed:
    """Compute a piece in this process."""
    if rows is None:
        assert engine.rows_of is not None
        assert network.draws is not None
        rows = engine.rows_of(network.draws, piece.group.users)
    network = replace(network, own=piece.own.__getitem__)
    adding = _Adding(engine.layers, engine.weights)
    loss = engine.computed(piece.group, network, rows, adding)
    return Computed(adding.sums, adding.reached, loss)


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker: with more, sums may be rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
