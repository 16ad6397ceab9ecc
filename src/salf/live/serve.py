"""The server of a live run: its rounds, who looks on, and what they leave."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np

from salf.core import rows as records
from salf.core.rows import Row
from salf.core.server import schedule
from salf.live.rounds import Grace, Link, Rounds
from salf.live.server import LiveServer, ServerSettings
from salf.problem import Problem
from salf.runs.federation import evaluation_of, planned_steps, problem_of
from salf.runs.folder import RunFolder, remembered, summarise, without_last_evaluation
from salf.runs.live_config import LiveConfig
from salf.runs.run import Result
from salf.runs.training import History, OnRound, ends_run

log = logging.getLogger("salf.live")


class Watcher(Protocol):
    """Somebody who looks on, such as the command line."""

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
    """Nobody looks on: there is a log."""


def serve(
    config: LiveConfig,
    link: Link,
    folder: RunFolder | None = None,
    *,
    problem: Problem | None = None,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
    grace: Grace | None = None,
) -> Result:
    """Train with the users at the other end of the link.

    With a folder, every closed round is kept there, and a run that was stopped continues after the
    last of them.
    """
    problem, watcher = problem or problem_of(config), watcher or Nobody()
    evaluation = evaluation_of(config, problem)
    server = make_server(config, problem)
    rows: list[Row] = []
    if folder is not None:
        server.restore(folder.checkpoint)
        rows = without_last_evaluation(records.resume(folder.rounds, server.t), evaluation)
        records.rewrite(folder.rounds, rows)
    rounds = Rounds(
        server,
        link,
        config.make_deadline(),
        grace or Grace(config.grace),
        cohort=None if config.cohort == "all" else config.cohort_size(),
        seed=config.seed,
        on_wait=watcher.say,
    )
    stopped = False
    while server.t < config.rounds and not stopped:
        row = evaluation.measured(rounds.next(), config.rounds)
        rows.append(row)
        if folder is not None:  # the state comes last: a round that it does not have is run again
            records.append(folder.rounds, row)
            server.save(folder.checkpoint)
        watcher.round(row)
        stopped = ends_run(on_round, row, problem.model)
    history = History(
        tuple(rows), evaluation.tested(), config.backend, "users are real processes", stopped
    )
    summary = summarise(config, history, problem) | _counted(config, rows)
    summary |= {"voice": None, **remembered(server.pipeline)}
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
        reach="learned" if config.learns_reach else "counted",
        max_norm=config.max_norm,
        robust="none" if config.robust == "auto" else config.robust,
        tolerate=config.tolerate,
        compress=config.compress,
    )
    return LiveServer(problem, schedule(config.lr, config.rounds), settings)


Say = Callable[[str], None]


def wait_for(users: int, present: Callable[[], Collection[str]], say: Say) -> None:
    """Before the first round only: after it, nobody is waited for."""
    there = -1
    while (now := len(present())) < users:
        if now != there:
            say(f"{now} of {users} users have joined; waiting for the others.")
        there = now
        time.sleep(0.2)


def _counted(config: LiveConfig, rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of live runs: how far users came, and how rounds kept their limit."""
    answers = [(row, user) for row in rows for user in row.depths]
    asked = max(1, len(answers))
    finished = sum(row.finished(user) for row, user in answers)
    delivered = sum(row.delivered(user) for row, user in answers)
    limited = [row for row in rows if row.limit is not None]
    in_time = sum(row.seconds <= (row.limit or 0.0) for row in limited)
    return {
        "deadline": config.deadline,
        "finished": finished / asked,
        "partial": (delivered - finished) / asked,
        "nothing": (len(answers) - delivered) / asked,
        "late": sum(row.late for row in rows),
        "rejected": sum(len(row.rejected) for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "empty": sum(not any(row.reached) for row in rows),  # rounds in which nobody came anywhere
        "rounds_in_time": in_time / len(limited) if limited else None,
    }
