"""The Flower app of `salf live --backend flower`: the federation a config describes.

It is what examples/flower-mnist is, for any config, and its users draw the simulator's batches.
"""

import json
import logging
from itertools import chain
from logging import WARNING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from salf.common.errors import SalfError
from salf.common.files import temporary_folder, write_whole
from salf.core import rows
from salf.live.flower.client import answer
from salf.live.flower.link import GridLink, grace_of
from salf.live.flower.local import LocalFederation, end_with_parent
from salf.live.flower.strategy import WAITING
from salf.live.flower.strategy import log as flower_log
from salf.live.launch import Nobody, Watcher, serve
from salf.live.rounds import wait_for
from salf.live.slow import slowness
from salf.live.users import make_user, user_name
from salf.runs.federation import problem_of
from salf.runs.folder import RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import read_toml
from salf.runs.run import Result

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


def run_here(config: LiveConfig, folder: RunFolder | None, watcher: Watcher) -> Result:
    """Run the app with a SuperLink and SuperNodes on this machine."""
    watcher.status("starting SuperLink and SuperNodes")
    with temporary_folder("salf-live") as scratch, LocalFederation(config.users) as federation:
        kept = folder or RunFolder(scratch / "run")
        kept.path.mkdir(exist_ok=True)
        write_whole(scratch / "app" / "pyproject.toml", _PYPROJECT)
        names = {federation.node_id(n): user_name(n + 1) for n in range(config.users)}
        settings = {
            "config": config.to_toml(),
            "folder": str(kept.path.absolute()),
            "names": json.dumps(names),
        }
        watcher.status("")
        shown = len(rows.read(kept.rounds))
        for line in chain(federation.run(scratch / "app", settings), [""]):
            log.info("%s", line)
            if (waiting := line.partition(WAITING)[2]) != "":
                watcher.say(waiting.strip())
            for row in rows.read(kept.rounds)[shown:]:
                watcher.round(row)
                shown += 1
        if (summary := kept.summary()) is None:
            raise SalfError("the Flower app ended before all rounds were closed.")
        return Result(config, kept.history(summary), summary)


class _Aloud(Nobody):
    """Says in the app's log what should be known; `run_here` reads it there."""

    def say(self, text: str) -> None:
        flower_log(WARNING, "%s %s", WAITING, text)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; the folder gets what a live run leaves."""
    end_with_parent()
    config, watcher = _read(context), _Aloud()
    problem, grace = problem_of(config), grace_of(config.grace, config.tolerate)
    names = json.loads(str(context.run_config["names"]))
    link = GridLink(grid, problem.layers, grace, compress=config.compress, names=names)
    wait_for(config.users, link.users, watcher.say)
    folder = RunFolder(str(context.run_config["folder"]))
    serve(config, link, folder, problem, watcher=watcher, grace=grace)


@client.train()
def train(msg: Message, context: Context) -> Message:
    """One round of one user."""
    end_with_parent()
    config = _read(context)
    number = int(context.node_config["partition-id"]) + 1
    slow = slowness(config.slow, config.users)[number - 1]
    return answer(make_user(config, number, slow), msg, context)


def _read(context: Context) -> LiveConfig:
    config = read_toml(str(context.run_config["config"]))
    assert isinstance(config, LiveConfig)
    return config
