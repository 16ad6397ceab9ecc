"""The users of a round on all cores: worker processes compute one user at a time.

Workers are copies of this process (forked), so that model and data are there already, and read the
weights of a round from shared memory. They work like the loop engine, on one thread each, and their
updates are added in the order of the users: the result does not depend on the number of workers,
bit for bit.
"""

import multiprocessing
import pickle
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, portable
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Ints
from salf.core.draws import Keyed
from salf.core.narrow import SubNetwork
from salf.core.rules import LocalRule, State
from salf.engines.base import Engine, LocalSteps, LoopEngine, Network, Rows, Weights
from salf.methods import Group, RoundPlan

WORTH = 0.05  # seconds of a round from which on workers pay
SLOTS = 2  # updates under way per worker: one is added while it computes the next
TRIES = 3  # how often a user is computed whose worker dies
LINE = 64  # bytes: where tensors begin in shared memory

RowsOf = Callable[[Keyed, Ints], Rows]  # the rows of some users in a round


class _Start(NamedTuple):
    """What workers need to know of a round, beside the weights."""

    draws: Keyed
    rate: float
    narrow: SubNetwork | None
    rule: LocalRule | None
    server: State


class _Task(NamedTuple):
    """One user's work, and where its update goes."""

    place: int
    user: int
    steps: int
    depth: int
    own: State
    slot: int = 0


class SpreadEngine(LoopEngine):
    """The loop engine, its users spread over several processes.

    One worker for each thread of PyTorch is started after the first round that takes long enough.
    `rows_of` gives a worker the rows of a round.
    """

    def __init__(self, loop: LoopEngine, rows_of: RowsOf) -> None:
        super().__init__(loop.model, loop.layers, loop.loss)
        self.why = loop.why
        self.rows_of = rows_of
        self.workers, self._starts = torch.get_num_threads(), False
        self._pool: _Pool | None = None
        self._given: Weights = self.weights

    def start(self, workers: int) -> None:
        """Use so many workers from the next round on."""
        self.workers, self._starts = workers, True

    def _network(
        self, plan: RoundPlan, group: Group, weights: Weights, local: LocalSteps
    ) -> Network:
        self._given = weights
        return super()._network(plan, group, weights, local)

    def _separately(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        local = network.local
        if self._pool is None and self._starts and self.workers > 1:
            self._pool = _Pool(self, self.workers)
            weakref.finalize(self, self._pool.close)
            self.why += f"; {self.workers} processes share the users of a round"
        if self._pool is None or local.draws is None or len(group.users) < 2:
            start = perf_counter()
            with _one_thread():
                loss = super()._separately(group, network, rows, aggregate)
            self._starts = self._starts or perf_counter() - start > WORTH
            return loss
        start_of = _Start(local.draws, network.rate, network.narrow, local.rule, local.server)
        users = zip(group.users.tolist(), group.steps.tolist(), group.depth.tolist(), strict=True)
        tasks = [_Task(i, *each, local.own(each[0])) for i, each in enumerate(users)]
        loss = 0.0
        try:
            for task, update, own_loss in self._pool.updates(self._given, start_of, tasks):
                if aggregate.separate:  # a stage may keep it
                    update = {name: value.clone() for name, value in update.items()}
                weights = group.weights[:, task.place]
                aggregate.add(update, weights, held=network.held, user=task.user)
                loss += own_loss
        except BaseException:  # workers are in the middle of something
            self._pool.close()
            self._pool = None
            raise
        return loss

    def computed(self, start: _Start, task: _Task) -> tuple[dict[str, Tensor], float]:
        """A user's update and loss, from the weights as they are."""
        local = LocalSteps(
            lambda t: start.rate, start.rule, start.server, lambda user: task.own, start.draws
        )
        network = Network(self.weights, False, None, start.rate, local)
        if start.narrow is not None:
            leaves = start.narrow.leaves(self.weights)
            network = Network(leaves, True, start.narrow, start.rate, local)
        user = np.array([task.user])
        return self._user(user, task.steps, task.depth, network, self.rows_of(start.draws, user))


class _Shared:
    """Tensors as large as these, in memory that processes share."""

    def __init__(self, like: Weights) -> None:
        sizes = [-(-tensor.nbytes // LINE) * LINE for tensor in like.values()]
        memory = torch.empty(max(1, sum(sizes)), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._flat = {
            name: part[: tensor.nbytes].view(tensor.dtype)
            for (name, tensor), part in zip(like.items(), memory.split(sizes), strict=False)
        }

    def of(self, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """The tensors of these names; narrow networks have smaller ones."""
        return {n: self._flat[n][: shape.numel()].view(shape) for n, shape in shapes.items()}

    def fill(self, tensors: Weights) -> dict[str, torch.Size]:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        for name, place in self.of(shapes).items():
            place.copy_(tensors[name].detach())
        return shapes


@dataclass(eq=False)
class _Worker:
    """A worker as the parent sees it."""

    process: BaseProcess
    pipe: Connection
    slots: tuple[_Shared, ...]
    free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    tasks: dict[int, _Task] = field(default_factory=dict)  # under way, by place
    knows: int = 0  # the start that it was sent last


class _Pool:
    """The workers of an engine."""

    def __init__(self, engine: SpreadEngine, workers: int) -> None:
        # The model's own tensors stay with the parent; workers read a copy of them.
        self._engine = weakref.ref(engine)
        self._weights = _Shared(engine.weights)
        self._slots = [tuple(_Shared(engine.weights) for _ in range(SLOTS)) for _ in range(workers)]
        self._workers: list[_Worker] = []
        self._starts = 0
        for slots in self._slots:
            self._workers.append(self._started(slots))

    def updates(
        self, weights: Weights, start: _Start, tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, dict[str, Tensor], float]]:
        """Every user's update and loss, in order; an update is valid until the next one."""
        self._weights.fill(weights)
        self._starts += 1
        news = pickle.dumps(start)
        todo, tries = deque(tasks), dict[int, int]()
        early: dict[int, tuple[_Task, dict[str, Tensor], float]] = {}
        ahead = 2 * SLOTS * len(self._workers)  # no more updates than this wait for their turn
        turn = 0
        while turn < len(tasks):
            for worker in self._workers:
                while worker.free and todo and todo[0].place < turn + ahead:
                    self._send(worker, todo.popleft(), news)
            if turn in early:
                yield early.pop(turn)
                turn += 1
                continue
            for pipe in wait([worker.pipe for worker in self._workers]):
                index = next(i for i, each in enumerate(self._workers) if each.pipe is pipe)
                worker = self._workers[index]
                try:
                    place, shapes, loss = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    for task in worker.tasks.values():
                        self._count(tries, task)
                    todo.extendleft(sorted(worker.tasks.values(), reverse=True))
                    self._workers[index] = self._started(self._slots[index])
                    continue
                task = worker.tasks.pop(place)
                if isinstance(shapes, BaseException):
                    raise shapes
                update = worker.slots[task.slot].of(shapes)
                if place == turn:
                    yield task, update, loss
                    turn += 1
                else:
                    copies = {name: value.clone() for name, value in update.items()}
                    early[place] = task, copies, loss
                worker.free.append(task.slot)

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # it has nothing to lose
            worker.process.join()
            worker.pipe.close()

    def _send(self, worker: _Worker, task: _Task, news: bytes) -> None:
        task = task._replace(slot=worker.free.pop())
        worker.tasks[task.place] = task
        try:
            if worker.knows != self._starts:
                worker.pipe.send_bytes(news)
                worker.knows = self._starts
            worker.pipe.send_bytes(pickle.dumps(task))
        except ConnectionError:
            pass  # it died: its pipe says so when it is read

    def _count(self, tries: dict[int, int], task: _Task) -> None:
        tries[task.place] = tries.get(task.place, 0) + 1
        if tries[task.place] == TRIES:
            raise SalfError(
                f"the process that computes user {task.user} died {TRIES} times (killed, or out of "
                "memory): fewer workers need less memory."
            )

    def _started(self, slots: tuple[_Shared, ...]) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        engine = self._engine()
        assert engine is not None
        process = context.Process(
            target=_work, args=(engine, self._weights, slots, theirs, inherited), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, slots)


def _work(
    engine: SpreadEngine,
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
    shared = weights.of({name: tensor.shape for name, tensor in engine.weights.items()})
    buffers = {n for n, tensor in engine.model.named_buffers()}
    for name, tensor in engine.weights.items():
        if name not in buffers:
            tensor.data = shared[name]
    start: _Start | None = None
    try:
        while True:
            news = pickle.loads(pipe.recv_bytes())
            if isinstance(news, _Start):
                start = news
                for name in buffers:  # which a forward pass changes
                    engine.weights[name].copy_(shared[name])
                continue
            assert start is not None
            try:
                update, loss = engine.computed(start, news)
                pipe.send((news.place, slots[news.slot].fill(update), loss))
            except Exception as error:  # whatever somebody else's code raises
                pipe.send((news.place, portable(error), 0.0))
    except (EOFError, ConnectionError):
        return


def can_spread(engine: Engine) -> bool:
    """Whether workers can be started for this engine."""
    inside = multiprocessing.parent_process() is not None  # of a pool, which uses all cores
    on_cpu = all(tensor.device.type == "cpu" for tensor in engine.weights.values())
    return sys.platform == "linux" and on_cpu and not inside


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker: with more, sums may be rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
