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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, portable
from salf.core.rules import State
from salf.engines.base import Add, Engine, Network, Rows, RowsOf, Weights
from salf.engines.blocks import stand_ins_inside, stood_in
from salf.methods import Group

WORTH = 0.05  # seconds of a round from which on workers pay
AHEAD = 2  # users that a worker is given at a time: it has the next one when it is done
SLOTS = 4  # updates that a worker may have ready, while the users before them are computed
TRIES = 3  # how often a user is computed whose worker dies
LINE = 64  # bytes: where tensors begin in shared memory

Shapes = Mapping[str, torch.Size]


class Crew:
    """The workers of an engine: one for each thread of PyTorch, unless told otherwise.

    They are started after the first round that takes long enough. `rows_of` gives a worker the rows
    of a round.
    """

    def __init__(self, engine: Engine, rows_of: RowsOf) -> None:
        self.stand_ins = list(stand_ins_inside([engine.model], exact=True))
        self.workers: list[_Worker] = []
        self.rows_of = rows_of
        self._count, self._due = engine.workers or torch.get_num_threads(), engine.workers > 0
        inside = multiprocessing.parent_process() is not None  # of a pool, which uses all cores
        on_cpu = all(tensor.device.type == "cpu" for tensor in engine.weights.values())
        self._possible = sys.platform == "linux" and on_cpu and not inside
        weakref.finalize(self, _end, self.workers)

    def compute(
        self, engine: Engine, group: Group, network: Network, rows: Rows, add: Add, keep: bool
    ) -> float:
        """As `Engine.one_by_one` does; with `keep`, updates are kept by who gets them."""
        if not self._possible:
            return engine.one_by_one(group, network, rows, add)
        if not self.workers and self._due and self._count > 1:
            self._weights = _Shared(engine.weights)
            for _ in range(self._count):
                worker = _Worker(engine.weights)
                self._begin(worker, engine)
                self.workers.append(worker)
            engine.why += f"; {self._count} processes share the users of a round"
        if not self.workers or network.draws is None:
            start = perf_counter()
            with one_thread(), self.kernels(network):
                loss = engine.one_by_one(group, network, rows, add)
            self._due |= perf_counter() - start > WORTH
            return loss
        return self.share(engine, group, network, add, keep)

    def share(self, engine: Engine, group: Group, network: Network, add: Add, keep: bool) -> float:
        """Let the workers compute the users of a group."""
        users = zip(group.users.tolist(), group.steps.tolist(), group.depth.tolist(), strict=True)
        tasks = [UserTask(place, *each, network.own(each[0])) for place, each in enumerate(users)]
        total = 0.0
        try:
            with one_thread():  # a second one would wait in a loop, on a worker's core
                for place, update, loss in self.updates(engine, network, tasks):
                    kept = {n: value.clone() for n, value in update.items()} if keep else update
                    add(place, kept)
                    total += loss
        except BaseException:  # workers are in the middle of something
            self.end()
            raise
        return total

    def end(self) -> None:
        """End the workers; they are started again if there is more to do."""
        _end(self.workers)

    def computed(
        self, engine: Engine, network: Network, task: "UserTask"
    ) -> tuple[dict[str, Tensor], float]:
        """A user's update and loss, in this process."""
        user, of_user = np.array([task.user]), {task.user: task.own}
        assert network.draws is not None
        rows, own = self.rows_of(network.draws, user), replace(network, own=of_user.__getitem__)
        with self.kernels(network):
            return engine.user(user, task.steps, task.depth, own, rows)

    def kernels(self, network: Network) -> AbstractContextManager[None]:
        """Faster modules in the model, which a narrow network does not know by name."""
        return stood_in(self.stand_ins if network.narrow is None else ())

    def updates(
        self, engine: Engine, network: Network, tasks: Sequence["UserTask"]
    ) -> Iterator[tuple[int, Weights, float]]:
        """Every user's update and loss, in order; an update is valid until the next one."""
        self._weights.fill(engine.weights)
        news = pickle.dumps(network.news)
        for worker in self.workers:
            worker.send(news)
        todo, tries = deque(tasks), Counter[int]()
        ready: dict[int, tuple[_Worker, int, Shapes, float]] = {}
        for turn in range(len(tasks)):
            while turn not in ready:
                for worker in self.workers:
                    while todo and worker.free and len(worker.tasks) < AHEAD:
                        worker.give(todo.popleft())
                by_pipe = {worker.pipe: worker for worker in self.workers}
                for pipe in wait(list(by_pipe)):  # has something to say, or died
                    worker = by_pipe[pipe]  # type: ignore[index]
                    try:
                        place, shapes, loss = worker.pipe.recv()
                    except (EOFError, ConnectionError):  # it died
                        lost = [worker.tasks[place] for place in sorted(worker.tasks)]
                        tries.update(task.user for task in lost)
                        for user, count in tries.items():
                            if count == TRIES:
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
                    ready[place] = worker, worker.tasks.pop(place).slot, shapes, loss
            worker, slot, shapes, loss = ready.pop(turn)
            yield turn, worker.slots[slot].of(shapes), loss
            worker.free.append(slot)

    def _begin(self, worker: "_Worker", engine: Engine) -> None:
        """Start a worker's process, a new one if there was one."""
        others = [each.pipe for each in self.workers if each is not worker]
        worker.begin(engine, self, self._weights, others)


class UserTask(NamedTuple):
    """One user's work, and where its update goes."""

    place: int
    user: int
    steps: int
    depth: int
    own: State
    slot: int = 0


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
        self.tasks: dict[int, UserTask] = {}  # under way, by place

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

    def give(self, task: UserTask) -> None:
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
            if not isinstance(news, UserTask):
                network = Network.of(engine.weights, news)
                continue
            try:
                update, loss = crew.computed(engine, network, news)
                pipe.send((news.place, slots[news.slot].fill(update), loss))
            except Exception as error:  # whatever somebody else's code raises
                pipe.send((news.place, portable(error), 0.0))
    except (EOFError, ConnectionError):
        return


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker: with more, sums may be rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
