"""The Flower app of `salf live --backend flower`: the federation a config describes.

It is what examples/flower-mnist is, for any config, and its users draw the simulator's batches.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from math import nan
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from salf.common.errors import SalfError
from salf.common.files import temporary_folder, write_whole
from salf.core import rows as records
from salf.core import schedules
from salf.core.rows import Row
from salf.live.flower.client import train as answer
from salf.live.flower.local import LocalFederation
from salf.live.flower.parent import end_with_parent
from salf.live.flower.strategy import SALF, WAITING
from salf.live.serve import Watcher, finish, server_settings
from salf.live.server import saved_round
from salf.live.slow import Slowdown, slowness
from salf.live.users import UserBatches, user_name
from salf.runs.federation import evaluation_of, problem_of, problem_of_user
from salf.runs.folder import RunFolder, without_last_evaluation
from salf.runs.live_config import LiveConfig
from salf.runs.presets import read_toml

log = logging.getLogger("salf.live")

client = ClientApp()
server = ServerApp()

_PYPROJECT = {
    "project": {
        "name": "salf-live",
        "version": "1.0.0",
        "description": "A salf config on Flower.",
        "license": "Apache-2.0",
    },
    "tool": {
        "flwr": {
            "app": {
                "publisher": "salf",
                "components": {
                    "serverapp": f"{__name__}:server",
                    "clientapp": f"{__name__}:client",
                },
                "config": {"config": "", "folder": "", "names": ""},
            }
        }
    },
}


def run_here(config: LiveConfig, folder: RunFolder, watcher: Watcher) -> dict[str, Any]:
    """Run the app with a SuperLink and SuperNodes on this machine, and return the summary."""
    watcher.status("starting SuperLink and SuperNodes")
    with (
        temporary_folder("salf-app") as app,
        LocalFederation([{}] * config.users) as federation,
    ):
        write_whole(app / "pyproject.toml", tomli_w.dumps(_PYPROJECT))
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
        added.show(watcher.round, all=True)
    summary = folder.summary()
    if summary is None:
        raise SalfError("the Flower app ended before all rounds were closed.")
    return summary


class Added:
    """The rounds that a record gets after round t. Looking for them costs little, however many."""

    def __init__(self, path: Path, t: int) -> None:
        self._path = path
        self._next = 0.0  # when it may be read again
        self._seen = self._stamp()
        self._shown = t

    def show(self, on_round: Callable[[Row], None], *, all: bool = False) -> None:
        """Call the function for each round that is new; `all` is for the last time."""
        began = time.monotonic()
        stamp = self._stamp()
        if stamp == self._seen or (began < self._next and not all):
            return
        self._seen = stamp
        done = records.read(self._path)
        self._next = time.monotonic() + 10 * (time.monotonic() - began)
        for row in done[self._shown :]:
            on_round(row)
        self._shown = len(done)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return None
        return about.st_size, about.st_mtime_ns


class Named(SALF):
    """SALF whose record calls users by their number in the config, not by their node's."""

    names: Mapping[str, str]

    def _keep(self, row: Row, result: Any) -> None:
        def name(node: str) -> str:
            return self.names.get(node, node)

        named = replace(
            row,
            depths={name(node): depth for node, depth in row.depths.items()},
            rejected=tuple((name(node), reason) for node, reason in row.rejected),
            silent=tuple(name(node) for node in row.silent),
            steps={name(node): steps for node, steps in row.steps.items()},
            rows={name(node): rows for node, rows in row.rows.items()},
            stages={name(node): stages for node, stages in row.stages.items()},
            arrived={name(node): seconds for node, seconds in row.arrived.items()},
        )
        end_with_parent()
        super()._keep(named, result)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; the folder gets what a live run leaves."""
    end_with_parent()
    config = _read(context)
    folder = RunFolder(str(context.run_config["folder"]))
    problem = problem_of(config)
    evaluation = evaluation_of(config, problem)
    if rows := records.read(folder.rounds):
        records.rewrite(folder.rounds, without_last_evaluation(rows, evaluation))

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        due = round and (evaluation.is_due(Row(round, nan, ())) or round == config.rounds)
        measured = evaluation.of(problem.validation) if due else None
        return MetricRecord(dict(measured)) if measured else None

    strategy = Named(
        problem,
        lr=schedules.schedule(config.lr, config.rounds),
        deadline=config.make_deadline(),
        grace=config.grace,
        **server_settings(config, problem),
        state=folder.checkpoint,
        record=folder.rounds,
        min_available_nodes=config.users,
        fraction_train=config.cohort_size() / config.users,
        min_train_nodes=config.cohort_size(),
        seed=config.seed,
        fraction_evaluate=0.0,
    )
    strategy.names = json.loads(str(context.run_config["names"]))
    arrays = ArrayRecord(problem.model.state_dict())
    strategy.start(grid, arrays, num_rounds=config.rounds, evaluate_fn=evaluate)
    end_with_parent()
    finish(config, evaluation, strategy.server, records.read(folder.rounds), folder)


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
        return answer(problem.model, batch, msg, context, steps=batches.steps, **own)


def _read(context: Context) -> LiveConfig:
    config = read_toml(str(context.run_config["config"]))
    assert isinstance(config, LiveConfig)
    return config
