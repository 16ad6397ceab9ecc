"""Many jobs on a few cores: one process each, progress while they run, and a clean end."""

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from time import monotonic
from typing import Any

from salf.common import process
from salf.common.errors import SalfError, TrainingDiverged
from salf.runs.config import Config
from salf.runs.federation import Given, data_files
from salf.runs.run import Result, Stopped, complete, cores, run
from salf.runs.training import OnPart, OnRound, counted

# Gets (work done, work in all).
OnProgress = Callable[[float, float], None]


@dataclass(frozen=True)
class Job:
    """What to do, in a process that has only this, and how much work it is next to the others."""

    do: Callable[[OnPart], Any]  # goes to another process: no lambda, no closure
    work: float
    place: Path | None = None  # the folder or file that it writes
    reads: tuple[Path, ...] = ()  # files and folders of data


@dataclass
class Finished:
    """What jobs returned, and why the training of those that did not return diverged."""

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, do: Callable[[], Any]) -> None:
        try:
            self.results[name] = do()
        except TrainingDiverged as error:
            self.failures[name] = str(error)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the work before all jobs were done; `done` is what there is."""

    def __init__(self, done: Finished) -> None:
        super().__init__()
        self.done = done


def run_job(
    config: Config,
    out: Path | None,
    work: float | None = None,
    on_round: OnRound | None = None,
    given: Given | None = None,
) -> Job:
    """A run as a job; with `out`, it goes on in that folder where it stopped.

    Of Python objects in place of settings, the model is copied.
    """
    work = work or config.seconds or config.rounds
    config = complete(config, here=False)  # paths are those of this process
    place = None if out is None else out.absolute()
    return Job(partial(_run, config, place, on_round, given), work, place, data_files(config))


Ended = tuple[str, Callable[[], Any]]  # a job's name, and what gives its result or raises its error


class Pool(ABC):
    """What does jobs: processes of this machine, or a cluster."""

    @abstractmethod
    def ended(
        self, jobs: Mapping[str, Job], note: Callable[[str, float], None]
    ) -> Generator[Ended, None, None]:
        """Do all jobs, and give each when it has ended; `note` gets how far a job is."""

    def do(
        self,
        jobs: Mapping[str, Job],
        on_progress: OnProgress | None = None,
        on_done: Callable[[str, Finished], None] | None = None,
    ) -> Finished:
        """Do all jobs, as `run_all` does; whatever goes wrong, no more can be done."""
        progress, done = dict.fromkeys(jobs, 0.0), Finished()

        def note(name: str, part: float) -> None:
            if name in progress:  # and not of jobs that were done before
                progress[name] = part
            if on_progress is not None:
                parts = (progress[name] * job.work for name, job in jobs.items())
                on_progress(sum(parts), sum(job.work for job in jobs.values()))

        try:
            with closing(self.ended(jobs, note)) as ended:
                for name, result in ended:
                    done.add(name, result)
                    note(name, 1.0)
                    if on_done is not None:
                        on_done(name, done)
        except KeyboardInterrupt:
            raise Interrupted(done) from None
        return done


# How many processes of this machine, by default one per core; 0 for none but this one.
WorkersLike = int | Pool | None


@contextmanager
def pool_of(workers: WorkersLike, most: int | None = None) -> Iterator[Pool]:
    """Processes of this machine, no more than `most`; or the pool that is given."""
    if workers is None or isinstance(workers, int):
        count = cores() if workers is None else workers
        with WorkerPool(count if most is None else min(count, most)) as pool:
            yield pool
    else:
        yield workers


def run_all(
    jobs: Mapping[str, Job],
    workers: WorkersLike = None,
    on_progress: OnProgress | None = None,
    on_done: Callable[[str, Finished], None] | None = None,
) -> Finished:
    """Do all jobs, beginning with the first.

    A training that diverges costs its own result; anything else that goes wrong ends it all.
    `on_done` is called with the name of each job that ended, and with what there is so far.
    """
    with pool_of(workers, len(jobs)) as pool:
        return pool.do(jobs, on_progress, on_done)


class WorkerPool(Pool):
    """Processes that do jobs, and stay for more of them until the block ends; this one if 0."""

    def __init__(self, count: int | None = None) -> None:
        self._context = get_context("spawn")  # a forked torch may deadlock
        self._count = cores() if count is None else count

    def __enter__(self) -> "WorkerPool":
        if self._count:
            self._messages, self._stop = self._context.SimpleQueue(), self._context.Event()
            told = self._messages, self._stop
            self._pool = ProcessPoolExecutor(self._count, self._context, _start_worker, told)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._count:
            if kind is not None:
                self._stop.set()
            self._pool.shutdown(cancel_futures=True)

    def ended(
        self, jobs: Mapping[str, Job], note: Callable[[str, float], None]
    ) -> Generator[Ended, None, None]:
        if not self._count:
            yield from ((name, partial(job.do, partial(note, name))) for name, job in jobs.items())
            return
        with _without_main():
            names = {self._pool.submit(_do, name, job): name for name, job in jobs.items()}
        pending = set(names)
        while pending:
            finished, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            while not self._messages.empty():
                note(*self._messages.get())
            # In the order of the jobs.
            yield from ((names[each], partial(_result, each)) for each in names if each in finished)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        raise SalfError(
            "a process died (killed, or out of memory). With out=, repeat it to continue; fewer "
            "workers= need less memory."
        ) from None


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start do not import the program, which needs no `if __name__ == ...` then."""
    program: dict[str, Any] = vars(sys.modules["__main__"])
    kept: dict[str, Any] = {n: program.pop(n) for n in ("__file__", "__spec__") if n in program}
    program["__spec__"] = None
    try:
        yield
    finally:
        program.update(kept)


# Of a worker process: progress is reported here, and jobs end when the event is set.
_messages: Any = None
_stop: Any = None


def _start_worker(messages: Any, stop: Any) -> None:
    global _messages, _stop
    _messages, _stop = messages, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    signal.signal(signal.SIGTERM, process.leave)  # which systemd sends to all processes


def _end_with_parent() -> None:
    """A parent that was killed could not say that it is over. What was saved is whole."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _do(name: str, job: Job) -> Any:
    last = monotonic()

    def progress(part: float) -> None:
        nonlocal last
        if _stop.is_set():
            raise Stopped
        if monotonic() - last > 0.2:
            _messages.put((name, part))
            last = monotonic()

    progress(0.0)
    return job.do(progress)


def _run(
    config: Config,
    out: Path | None,
    on_round: OnRound | None,
    given: Given | None,
    progress: OnPart,
) -> Result:
    after = counted(config.rounds, config.seconds, progress, on_round)
    own = None if given is None else given.copied()
    return run(config, out, resume=out is not None, on_round=after, given=own)
