"""One run: train what a config describes, keep it in a folder, continue it from a checkpoint."""

import hashlib
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from salf.common import Report, process
from salf.common.errors import NoRoundInTime, SalfError, TrainingDiverged
from salf.core.rows import Row, from_table, read_checkpoint, to_table, unreadable, write_checkpoint
from salf.data.loading import FROM_PATH
from salf.engines.base import Engine
from salf.engines.spread import Crew
from salf.runs.config import Config
from salf.runs.federation import Given, from_config
from salf.runs.folder import Kind, RunFolder, of_simulation, summarise, without_last_evaluation
from salf.runs.settings import Settings
from salf.runs.training import History, OnRound, Training
from salf.simulation import Simulation, snapshot
from salf.stages.pipeline import load_state, state_of
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.deadlines import missing


class Stopped(KeyboardInterrupt):
    """A run was stopped after a round, on purpose. `on_round` may raise it, too."""


@dataclass(frozen=True)
class Result:
    """A finished run: its config, its history, and its summary as in summary.json."""

    config: Settings
    history: History
    summary: dict[str, Any]


class CrewMaker(Protocol):
    """What can make a crew for an engine: a cluster."""

    def crew(self, engine: Engine) -> Crew: ...


def run(
    config: Config,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = 10.0,
    on_round: OnRound | None = None,
    report: Report | None = None,
    workers: int | CrewMaker = 0,
    given: Given | None = None,
    keep_interrupted: bool = False,
) -> Result:
    """Run a config. With `out`, save the run in that folder; with `resume`, continue it.

    `checkpoint_every` is in seconds. `on_round(row, model)` is called after each round and may
    raise `StopTraining` to end the run. `report` receives a line when data are downloaded, or when
    there is nothing to continue. `workers` processes share the users of a round where they are
    computed one by one; by default, one per core if rounds take long enough; those of a
    `salf.cluster.Cluster` are on its nodes. `given` are Python objects in place of settings. With
    `keep_interrupted`, Ctrl-C ends the run with its rounds.
    """
    if resume and out is None:
        raise SalfError("resume=True needs out=, the folder of the run to continue.")
    clocked = given is None and config.fleet and config.deadline is None
    if clocked and config.make_method().asks.deadline:  # said before data are fetched
        raise missing()

    def go(config: Config, folder: RunFolder | None) -> Result:
        if resume and folder is not None and report and not folder.checkpoint.exists():
            report(f"{out} has no checkpoint yet: the run starts from the beginning.")
        torch.set_num_threads(config.threads)
        training = from_config(config, given, report)
        engine = training.simulation.engine
        alone = f"engine {engine.name!r}" if engine.rows_of is None else f"device {config.device!r}"
        if workers and report and (engine.rows_of is None or engine.device.type != "cpu"):
            report(f"One process is used: {alone} was asked for.")
        with ExitStack() as stack:
            if isinstance(workers, int):
                engine.workers = workers
            elif engine.rows_of is not None:
                engine.crew = workers.crew(engine)
                stack.callback(engine.crew.end)
            return _train(config, training, folder, checkpoint_every, on_round, keep_interrupted)

    return in_folder(config, out, resume, go)


def in_folder(
    config: Kind,
    out: Path | str | None,
    resume: bool,
    go: Callable[[Kind, RunFolder | None], Result],
) -> Result:
    """Run a config once it is complete, in a folder of its own if there is one."""
    if out is None:
        return go(complete(config), None)
    folder = RunFolder(out)
    with folder.locked():
        config = complete(folder.claim(complete(config, here=False), resume))
        if (summary := folder.finished(config)) is not None:
            return Result(config, folder.history(summary), summary)
        return go(config, folder)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def complete(config: Kind, *, here: bool = True) -> Kind:
    """The config with what it depends on filled in: paths, and what is in files.

    With `here`, also what follows from where and how long it is run, unless it is a run that
    continues: cores, and the simulated time between evaluations.
    """
    kind, _, path = config.data.partition(":")
    changes, files = dict[str, Any](), dict[str, str]()
    if kind in FROM_PATH and path:
        changes["data"] = f"{kind}:{Path(path).expanduser().absolute()}"
    if config.data_dir:
        changes["data_dir"] = str(Path(config.data_dir).absolute())
    if isinstance(config, Config) and config.fleet and (known := fleets.figures(config.fleet)):
        files["fleet"] = known
    for name in ("fleet", "availability", "deadline"):
        if (file := str(getattr(config, name, ""))).endswith(".csv"):
            changes[name], files[name] = str(Path(file).absolute()), _digest(Path(file))
    if here and isinstance(config, Config):
        # $OMP_NUM_THREADS where it is a positive number, as torch itself does.
        named = os.environ.get("OMP_NUM_THREADS", "").strip()
        threads = config.threads or (int(named) if named.isdecimal() else 0) or cores()
        changes |= {"threads": threads, "eval_seconds": config.eval_interval()}
    return config.changed(files=files, **changes)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise SalfError(f"cannot read {file}: {error.strerror}.") from None


def _train(
    config: Config,
    training: Training,
    folder: RunFolder | None,
    checkpoint_every: float,
    on_round: OnRound | None,
    keep_interrupted: bool,
) -> Result:
    rows = [] if folder is None else restore(folder, training)
    begun, saved = False, monotonic()

    def after_round(row: Row, model: nn.Module) -> None:
        nonlocal begun, saved
        if folder is not None and not begun:
            folder.begin(config)
            begun = True
        try:
            if on_round is not None:
                on_round(row, model)
        except KeyboardInterrupt:  # here the model and the metrics agree
            raise Stopped from None
        if folder is not None and monotonic() - saved >= checkpoint_every:
            save(folder, training.simulation, rows)
            saved = monotonic()
        if held:
            raise Stopped

    try:
        with process.held_signals() as held:  # until the model and the metrics agree
            history = training.run(config.rounds, config.seconds, after_round, rows)
    except (TrainingDiverged, Stopped) as error:  # both come between two rounds
        if folder is not None and rows:
            save(folder, training.simulation, rows)
            folder.save_model(training.simulation.model)
        if keep_interrupted and isinstance(error, Stopped) and signal.SIGTERM not in held:
            return Result(config, training.history(rows, stopped=True), {})
        if held:
            signal.raise_signal(held[0])
        raise
    if not history.rows:
        raise NoRoundInTime(
            f"no round ends within {config.seconds:g} simulated seconds: use more seconds= or a "
            "shorter deadline=; `salf fleet preview` shows how long rounds take."
        )
    summary = summarise(config, history, training.simulation.problem)
    summary |= of_simulation(config, history, training.simulation)
    result = Result(config, history, summary)
    if folder is not None:
        if not begun:  # a run that is extended may have no time for another round
            folder.begin(config)
        save(folder, training.simulation, rows)
        folder.finish(training.simulation.model, rows, result.summary)
    if held:  # during the last evaluation
        signal.raise_signal(held[0])
    return result


def save(folder: RunFolder, simulation: Simulation, rows: list[Row]) -> None:
    """Write the state after the last round, and the metrics so far."""
    groups = {"weights": simulation.engine.weights, **simulation.server.state}
    groups |= {f"old-{given}": weights for given, weights in simulation.old.items()}
    groups["world"] = {"memory": torch.from_numpy(simulation.memory)}
    groups["voice"] = {"total": torch.from_numpy(simulation.voice.total)}
    kept, plain = state_of(simulation.pipeline.kept)
    groups |= kept
    state = {"rows": [to_table(row) for row in rows], "kept": plain}
    write_checkpoint(folder.checkpoint, groups, state)
    folder.write_metrics(rows)


def restore(folder: RunFolder, training: Training) -> list[Row]:
    """Put a new simulation where the checkpoint is, and return the rows up to there."""
    if (found := read_checkpoint(folder.checkpoint)) is None:
        return []
    groups, state = found
    simulation = training.simulation
    weights = simulation.engine.weights
    try:
        rows = [from_table(table) for table in state["rows"]]
        with torch.no_grad():
            for name, tensor in groups.pop("weights").items():
                weights[name].copy_(tensor)
            kept = simulation.server.state
            simulation.server.load_state({slot: groups.pop(slot, {}) for slot in kept})
            simulation.memory = np.asarray(groups.pop("world")["memory"].numpy())
            simulation.voice.total = np.array(groups.pop("voice")["total"].numpy())
            load_state(simulation.pipeline.kept, groups, state["kept"])
            for group, tensors in groups.items():
                old = simulation.old[int(group.removeprefix("old-"))] = snapshot(weights)
                for name, tensor in tensors.items():
                    old[name].copy_(tensor)
        simulation.t = rows[-1].round
    except (KeyError, ValueError, IndexError, TypeError, RuntimeError) as error:
        raise unreadable(folder.checkpoint, error) from None
    return without_last_evaluation(rows, training.evaluation)
