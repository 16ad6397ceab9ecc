"""A live run: the federation that a config describes, with real users and a real clock.

Users draw the same batches as in the simulator, so a live run can be replayed with its recorded
depths.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from salf.common.errors import SalfError
from salf.common.files import only_ours
from salf.core import rows as records
from salf.core.rows import Row
from salf.core.server import schedule
from salf.live.rounds import Grace, Link, Rounds, wait_for
from salf.live.server import LiveServer, ServerSettings
from salf.live.slow import slowness
from salf.live.users import make_user, user_name
from salf.problem import Problem
from salf.runs.federation import evaluation_of, planned_steps, problem_of
from salf.runs.folder import LOG, RunFolder, remembered, summarise, without_last_evaluation
from salf.runs.live_config import LiveConfig
from salf.runs.run import Result, in_folder
from salf.runs.training import History, OnRound, ends_run
from salf.stages.robust import Robust

log = logging.getLogger("salf.live")


class Watcher(Protocol):
    """Somebody who looks on, such as the command line; by default, nobody: there is a log."""

    def begin(self, config: LiveConfig, layers: Sequence[str]) -> None:
        """The federation is put together."""
        return

    def status(self, text: str) -> None:
        """Something is being prepared; empty when that is over."""
        return

    def round(self, row: Row) -> None:
        """A round is closed."""
        return

    def say(self, text: str) -> None:
        """Something to know, such as for whom the server waits."""
        log.warning("%s", text)


class Nobody(Watcher):
    """Whoever does not look on."""


@dataclass(frozen=True)
class Joining:
    """Where users come from, on Ray."""

    address: str | None = None  # of a cluster; None: one is started
    here: int | None = None  # how many are started by the server; None: all of them
    min_users: int | None = None
    federation: str = "salf"

    def check(self, users: int, backend: str) -> None:
        """Refuse what cannot be."""
        numbers = {"here": self.here, "min_users": self.min_users}
        given = {name: number for name, number in numbers.items() if number is not None}
        if backend != "ray" and (given or self.address):
            raise SalfError(
                "address=, here= and min_users= are for Ray; see docs/flower.md for Flower's."
            )
        for name, number in given.items():
            if self.address is None:
                raise SalfError(
                    f"nobody can join a Ray cluster that salf starts: {name}= needs address=."
                )
            if not 0 <= number <= users:
                raise SalfError(f"{name}= must be from 0 to the number of users, {users}.")


def run(
    config: LiveConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    joining: Joining | None = None,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train with real processes and a real clock, as `salf live` does.

        config = salf.live.config(salf.PRESETS["mnist-cnn"], users=8, deadline="50ms", slow="0.5x8")
        result = salf.live.run(config, "runs/live")

    With `out`, every closed round is saved there; with `resume`, a run that was stopped continues
    after the last of them. `on_round(row, model)` is called after each round and may
    raise `salf.StopTraining`; with the backend Flower the model lives in another process, so there
    is no `on_round`.
    """
    joining, watcher = joining or Joining(), watcher or Nobody()
    joining.check(config.users, config.backend)
    if config.backend == "flower" and on_round is not None:
        raise SalfError("on_round is for Ray: with Flower the model is in another process.")
    config = trusting(config, joining, watcher.say)

    def go(config: LiveConfig, folder: RunFolder | None) -> Result:
        with nullcontext() if folder is None else _log_into(folder.path / LOG):
            # Before the users, so that data are fetched once.
            problem = problem_of(config, report=watcher.say)
            watcher.begin(config, [layer.name for layer in problem.layers])
            if folder is not None:
                folder.begin(config)
            if config.backend == "flower":
                from salf.live.flower.app import run_here

                return run_here(config, folder, watcher)
            with _on_ray(config, folder, joining, watcher) as link:
                return serve(config, link, folder, problem, on_round, watcher)

    return in_folder(config, out, resume, go)


def trusting(config: LiveConfig, joining: Joining, say: Callable[[str], None]) -> LiveConfig:
    """The config with the rule for users that may be bad, where it does not name one.

    Users that this command starts on a Ray of its own are trusted. Those that come to a cluster or
    through Flower are not.
    """
    if config.robust != "auto":
        return config
    rule = "mixed" if config.backend == "flower" or joining.address is not None else "none"
    if rule != "none" and config.users < (needed := Robust(rule, config.tolerate).needed):
        say(
            f"robust averaging is off: tolerating {config.tolerate} bad users takes at least "
            f"{needed} users, and there are {config.users}."
        )
        rule = "none"
    return config.changed(robust=rule)


@contextmanager
def _on_ray(
    config: LiveConfig, folder: RunFolder | None, joining: Joining, watcher: Watcher
) -> Iterator[Link]:
    """The link to users on Ray, once they are ready."""
    from salf.live.cluster import cluster

    started = slowness(config.slow, config.users)[: joining.here]
    states = None if folder is None else folder.path.absolute() / "users"
    with cluster(joining.address, joining.federation):
        from salf.live import ray

        watcher.status("preparing users")
        users = []  # kept, because a user lasts as long as its handle
        for number, slow in enumerate(started, 1):
            make = partial(make_user, config, number, slow, states)
            here = joining.here is not None
            users.append(ray.start_user(user_name(number), make, here=here))
        ray.wait_ready(users, lambda n: watcher.status(f"{n} of {len(users)} users are ready"))
        watcher.status("")
        link = ray.RayLink()
        wait_for(joining.min_users or 0, link.users, watcher.say)
        yield link


def serve(
    config: LiveConfig,
    link: Link,
    folder: RunFolder | None,
    problem: Problem,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
    grace: Grace | None = None,
) -> Result:
    """Train with the users at the other end of the link.

    With a folder, every closed round is kept there, and a run that was stopped continues after the
    last of them.
    """
    watcher, evaluation = watcher or Nobody(), evaluation_of(config, problem)
    server = make_server(config, problem)
    files = (None, None) if folder is None else (folder.checkpoint, folder.rounds)
    rows = without_last_evaluation(server.resume(*files), evaluation)
    if folder is not None:
        records.rewrite(folder.rounds, rows)
    rounds = Rounds(
        server,
        link,
        config.make_deadline(),
        grace or Grace(config.grace, tolerate=config.tolerate),
        cohort=None if config.cohort == "all" else config.cohort_size(),
        seed=config.seed,
        on_wait=watcher.say,
    )
    stopped = False
    while server.t < config.rounds and not stopped:
        row = evaluation.measured(rounds.next(), config.rounds)
        rows.append(row)
        server.keep(row, *files)
        watcher.round(row)
        stopped = ends_run(on_round, row, problem.model)
    history = History(
        tuple(rows), evaluation.tested(), config.backend, "users are real processes", stopped
    )
    summary = summarise(config, history, problem) | _counted(config, rows)
    summary |= {"voice": None, **remembered(server.pipeline)}
    server.end(files[0])
    if folder is not None:
        folder.finish(problem.model, rows, summary)
    return Result(config, history, summary)


def make_server(config: LiveConfig, problem: Problem) -> LiveServer:
    """The server of a live run, on Ray as on Flower."""
    steps = planned_steps(config, problem.users_data, np.arange(config.users))
    settings = ServerSettings(
        method=config.make_method(),
        optimiser=config.make_optimiser(),
        local_steps=int(steps.max()),
        client_lr=config.client_lr,
        equal_time=config.batch_size if config.equal_time() else None,
        max_norm=config.max_norm,
        robust="none" if config.robust == "auto" else config.robust,
        tolerate=config.tolerate,
        compress=config.compress,
    )
    return LiveServer(problem, schedule(config.lr, config.rounds), settings)


def _counted(config: LiveConfig, rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of a live run: how far users came, and how rounds kept their limit."""
    answers = [(row.finished(user), row.delivered(user)) for row in rows for user in row.depths]
    finished, delivered = np.array(answers).reshape(-1, 2).sum(axis=0) / max(1, len(answers))
    in_time = [row.seconds <= row.limit for row in rows if row.limit is not None]
    return {
        "deadline": config.deadline,
        "finished": float(finished),
        "partial": float(delivered - finished),
        "nothing": float(1 - delivered),
        "late": sum(row.late for row in rows),
        "rejected": sum(len(row.rejected) for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "empty": sum(not any(row.reached) for row in rows),  # rounds in which nobody came anywhere
        "rounds_in_time": sum(in_time) / len(in_time) if in_time else None,
    }


@contextmanager
def _log_into(path: Path) -> Iterator[None]:
    """Keep the log of a live run in its folder."""
    stream = open(path, "a", encoding="utf-8", opener=only_ours)  # noqa: SIM115  (closed below)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        stream.close()
