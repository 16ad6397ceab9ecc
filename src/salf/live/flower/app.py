"""The Flower app of `salf live --backend flower`: the federation a config describes.

It is what examples/flower-mnist is, for any config, and its users draw the simulator's batches.
"""

import json
import logging
import os
from collections.abc import Callable
from itertools import count
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from salf.common.errors import SalfError
from salf.common.files import temporary_folder, write_whole
from salf.core.rows import Row, from_table
from salf.live.flower.client import train as answer
from salf.live.flower.link import GridLink, Question, grace_of
from salf.live.flower.local import LocalFederation
from salf.live.flower.parent import end_with_parent
from salf.live.flower.strategy import WAITING
from salf.live.flower.strategy import log as flower_log
from salf.live.serve import Nobody, Watcher, serve, wait_for
from salf.live.server import saved_round
from salf.live.slow import Slowdown, slowness
from salf.live.users import UserBatches, user_name
from salf.runs.federation import problem_of, problem_of_user
from salf.runs.folder import RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import read_toml

log = logging.getLogger("salf.live")

client = ClientApp()
server = ServerApp()

_PYPROJECT = f"""
[project]
name = "salf-live"
version = "1.0.0"
description = "A salf config on Flower."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "salf"
config = {{ config = "", folder = "", names = "" }}
[tool.flwr.app.components]
serverapp = "{__name__}:server"
clientapp = "{__name__}:client"
"""


def run_here(config: LiveConfig, folder: RunFolder, watcher: Watcher) -> dict[str, Any]:
    """Run the app with a SuperLink and SuperNodes on this machine, and return the summary."""
    watcher.status("starting SuperLink and SuperNodes")
    with (
        temporary_folder("salf-app") as app,
        LocalFederation(config.users) as federation,
    ):
        write_whole(app / "pyproject.toml", _PYPROJECT)
        names = {federation.node_id(n): user_name(n + 1) for n in range(config.users)}
        settings = {
            "config": config.to_toml(),
            "folder": str(folder.path.absolute()),
            "names": json.dumps(names),
        }
        watcher.status("")
        added = Added(folder.rounds, saved_round(folder.checkpoint))
        for line in federation.run(app, settings):
            log.info("%s", line)
            if (waiting := line.partition(WAITING)[2]) != "":
                watcher.say(waiting.strip())
            added.show(watcher.round)
        added.show(watcher.round)
    summary = folder.summary()
    if summary is None:
        raise SalfError("the Flower app ended before all rounds were closed.")
    return summary


class Added:
    """The rounds after round t that are added to a record."""

    def __init__(self, path: Path, t: int) -> None:
        self._path, self._t = path, t
        self._file = self._read = 0  # which it was, and how many bytes of it were seen
        if path.exists():
            self._file, self._read = path.stat().st_ino, path.stat().st_size

    def show(self, on_round: Callable[[Row], None]) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as record:
            if self._file != (file := os.stat(record.fileno()).st_ino):  # it was written anew
                self._file, self._read = file, 0
            record.seek(self._read)
            whole, _, _ = record.read().rpartition(b"\n")
        self._read += len(whole) + bool(whole)
        for row in (from_table(json.loads(line)) for line in whole.splitlines()):
            if row.round > self._t:
                self._t = row.round
                on_round(row)


class _Aloud(Nobody):
    """Says in the app's log what should be known; `run_here` reads it there."""

    def say(self, text: str) -> None:
        flower_log(WARNING, "%s %s", WAITING, text)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; the folder gets what a live run leaves."""
    end_with_parent()
    config, watcher = _read(context), _Aloud()
    problem, grace = problem_of(config), grace_of(config.grace)
    names = json.loads(str(context.run_config["names"]))
    link = GridLink(grid, Question(problem.layers, grace, config.compress), names=names)
    wait_for(config.users, link.users, watcher.say)
    folder = RunFolder(str(context.run_config["folder"]))
    serve(config, link, folder, problem=problem, watcher=watcher, grace=grace)


@client.train()
def train(msg: Message, context: Context) -> Message:
    """One round of one user."""
    end_with_parent()
    config = _read(context)
    number = int(context.node_config["partition-id"]) + 1
    problem = problem_of_user(config, number - 1)
    batches = UserBatches.of(config, problem, number)
    if (slow := slowness(config.slow, config.users)[number - 1]) != 1:
        Slowdown(problem.model, slow)
    round = int(msg.content["config"]["server-round"])  # type: ignore[arg-type]
    steps = count(1)
    own: dict[str, Any] = {}
    if config.equal_time():
        own = {"batch_size": config.batch_size, "samples": len(batches.samples)}

    def batch(rows: int | None = None) -> Any:
        return batches.batch(round, next(steps), rows)

    own |= {"seed": config.seed, "number": number - 1, "method": config.make_method()}
    with batches.draws(round):
        return answer(problem, batch, msg, context, steps=batches.steps, **own)


def _read(context: Context) -> LiveConfig:
    config = read_toml(str(context.run_config["config"]))
    assert isinstance(config, LiveConfig)
    return config
