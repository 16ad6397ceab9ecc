"""A live run: the federation that a config describes, with real users and a real clock.

Users draw the same batches as in the simulator, so a live run can be replayed with its recorded
depths.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from salf.common.errors import SalfError
from salf.common.files import temporary_folder
from salf.live.serve import Nobody, Say, Watcher, serve, wait_for
from salf.live.slow import slowness
from salf.live.users import make_user, user_name
from salf.problem import Problem
from salf.runs.federation import problem_of
from salf.runs.folder import LOG, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.run import Result, in_folder
from salf.runs.training import OnRound
from salf.stages.robust import Robust

log = logging.getLogger("salf.live")


@dataclass(frozen=True)
class Joining:
    """Where users come from, on Ray."""

    address: str | None = None  # of a cluster; None: one is started
    here: int | None = None  # how many are started by the server; None: all of them
    min_users: int | None = None
    federation: str = "salf"

    def check(self, users: int, backend: str) -> None:
        """Refuse what cannot be."""
        given = (self.address, self.here, self.min_users)
        if backend != "ray" and any(each is not None for each in given):
            raise SalfError(
                "address=, here= and min_users= are for Ray; see docs/flower.md for Flower's."
            )
        for name, number in (("here", self.here), ("min_users", self.min_users)):
            if number is not None and self.address is None:
                raise SalfError(
                    f"nobody can join a Ray cluster that salf starts itself: {name}= needs "
                    "address=."
                )
            if number is not None and not 0 <= number <= users:
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
            return _run(config, folder, joining, on_round, watcher)

    return in_folder(config, out, resume, go)


def trusting(config: LiveConfig, joining: Joining, say: Say) -> LiveConfig:
    """The config with the rule for users that may be bad, where it does not name one.

    Users that this command starts on a Ray of its own are trusted. Those that come to a cluster or
    through Flower are not.
    """
    if config.robust != "auto":
        return config
    rule = "trimmed" if config.backend == "flower" or joining.address is not None else "none"
    if rule != "none" and config.users < (needed := Robust(rule, config.tolerate).needed):
        say(
            f"robust averaging is off: tolerating {config.tolerate} bad users takes at least "
            f"{needed} users, and there are {config.users}."
        )
        rule = "none"
    return config.changed(robust=rule)


def _run(
    config: LiveConfig,
    folder: RunFolder | None,
    joining: Joining,
    on_round: OnRound | None,
    watcher: Watcher,
) -> Result:
    problem = problem_of(config, report=watcher.say)  # before the users: data are fetched once
    watcher.begin(config, [layer.name for layer in problem.layers])
    if folder is not None:
        folder.begin(config)
    if config.backend == "ray":
        return _on_ray(config, problem, folder, joining, on_round, watcher)
    with temporary_folder("salf-live") as scratch:
        kept = RunFolder(scratch) if folder is None else folder
        from salf.live.flower.app import run_here

        summary = run_here(config, kept, watcher)
        return Result(config, kept.history(summary), summary)


def _on_ray(
    config: LiveConfig,
    problem: Problem,
    folder: RunFolder | None,
    joining: Joining,
    on_round: OnRound | None,
    watcher: Watcher,
) -> Result:
    from salf.live.cluster import cluster

    started = config.users if joining.here is None else joining.here
    slow = slowness(config.slow, config.users)
    with cluster(joining.address, joining.federation):
        from salf.live import ray

        watcher.status("preparing users")
        states = None if folder is None else folder.path.absolute() / "users"
        users = [  # kept, because a user lasts as long as its handle
            ray.start_user(
                user_name(number),
                partial(make_user, config, number, slow[number - 1], states),
                here=joining.here is not None,
            )
            for number in range(1, started + 1)
        ]
        ray.wait_ready(users, lambda n: watcher.status(f"{n} of {started} users are ready"))
        watcher.status("")
        link = ray.RayLink()
        wait_for(joining.min_users or 0, link.users, watcher.say)
        return serve(config, link, folder, problem=problem, on_round=on_round, watcher=watcher)


@contextmanager
def _log_into(path: Path) -> Iterator[None]:
    """Keep the log of a live run in its folder."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
