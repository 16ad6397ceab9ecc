"""The folder of a run, simulated or live: nothing is lost, and nothing is half written.

config.toml, metrics.csv, model.safetensors, summary.json, and a checkpoint from which an unfinished
run continues. A live run adds rounds.jsonl, the full record of every round, and live.log.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save_model
from torch import nn

from salf.common import version
from salf.common.errors import SalfError
from salf.common.files import json_text, locked, whole_file, write_whole
from salf.common.registry import importing_nothing
from salf.core import rows as records
from salf.core.rows import Row
from salf.data import Partitioned
from salf.problem import Problem
from salf.runs.config import Config
from salf.runs.lanes import lanes
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config
from salf.runs.settings import Settings
from salf.runs.training import Evaluation, History
from salf.simulation import Simulation
from salf.stages.pipeline import Pipeline
from salf.worlds.fleet.world import OnFleet

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.csv", "summary.json"
MODEL, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"
MOST_VOICES = 1000  # users whose shares a summary lists
ROUNDS, LOG = "rounds.jsonl", "live.log"  # of live runs

Kind = TypeVar("Kind", Config, LiveConfig)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT
        self.rounds = self.path / ROUNDS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the system releases the folder when this one ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path))
            except BlockingIOError as error:
                raise SalfError(f"{error}.") from None
            yield

    def config(self) -> Config | LiveConfig | None:
        """The config of the run here, if there is one."""
        file = self.path / CONFIG
        with importing_nothing(str(file), loaded=True):
            return load_config(str(file)) if file.exists() else None

    def claim(self, config: Kind, resume: bool) -> Kind:
        """The config to run here; refuses a folder that holds another run, or this one begun.

        Nothing is written yet, so a run that fails in its first round leaves the folder free.
        With `resume`, a run may be given more rounds, or simulated seconds, than it was begun with.
        """
        begun = any((self.path / name).exists() for name in (CHECKPOINT, ROUNDS, SUMMARY))
        if not begun or (there := self.config()) is None:
            return config
        if type(there) is not type(config):
            kind = "a live run" if isinstance(there, LiveConfig) else "a simulated run"
            raise SalfError(f"{self.path} contains {kind}. Choose another out=.")
        if isinstance(config, Config) and isinstance(there, Config):
            # Unless told otherwise, continue as it was begun.
            told = config.eval_seconds or config.eval_every
            seconds = config.eval_seconds if told else there.eval_seconds
            config = config.changed(threads=config.threads or there.threads, eval_seconds=seconds)
        differences = config.differences(there)
        if differences and set(differences) <= {"rounds", "seconds"} and resume:
            self._check_can_extend(there, config)
        elif differences:
            raise SalfError(
                f"{self.path} contains a run with a different config (it differs in "
                f"{', '.join(differences)}). Choose another out=."
            )
        elif not resume:
            raise SalfError(
                f"{self.path} already contains this run. Give resume=True to continue it, or "
                "choose another out=."
            )
        return config

    def _check_can_extend(self, there: Settings, config: Settings) -> None:
        for name, unit in (("rounds", "rounds"), ("seconds", "simulated seconds")):
            before, now = getattr(there, name, None), getattr(config, name, None)
            if (now or inf) < (before or inf):
                raise SalfError(
                    f"{self.path} contains a run of {before or 'any number of'} {unit}, which "
                    f"cannot be shortened to {now}. Choose another out=."
                )
        if str(config.lr).startswith("cosine"):
            raise SalfError(
                f"{self.path} contains a run whose learning rate falls to 0 over its "
                f"{there.rounds} rounds, so it cannot be extended. Choose another out=."
            )

    def begin(self, config: Settings) -> None:
        """The folder is this run's from now on."""
        if self.config() not in (None, config):
            (self.path / SUMMARY).unlink(missing_ok=True)  # it is extended: not finished
        write_whole(self.path / CONFIG, config.to_toml())

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that ended."""
        file = self.path / SUMMARY
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def finished(self, config: Settings) -> dict[str, Any] | None:
        """The summary, if the run ended as the config says, or before on purpose."""
        # A run that is extended loses its summary when its next round is kept.
        if (there := self.config()) is None or {"rounds", "seconds"} & {*config.differences(there)}:
            return None
        return self.summary()

    def history(self, summary: dict[str, Any]) -> History:
        return History(
            tuple(records.read(self.rounds) or records.read_csv(self.path / METRICS)),
            {name: nan if value is None else value for name, value in summary["test"].items()},
            **{name: summary[name] for name in ("engine", "why", "stopped", "loss")},
        )

    def write_metrics(self, rows: Sequence[Row]) -> None:
        records.write_csv(self.path / METRICS, rows)

    def finish(self, model: nn.Module, rows: Sequence[Row], summary: dict[str, Any]) -> None:
        """Write what a finished run leaves. The summary comes last: it says that all is there."""
        self.write_metrics(rows)
        self.save_model(model)
        write_whole(self.path / SUMMARY, json_text(summary))

    def save_model(self, model: nn.Module) -> None:
        """Write the model as it is now, to be read with `safetensors.torch.load_model`."""
        with whole_file(self.path / MODEL) as temporary:
            save_model(model, str(temporary))


def without_last_evaluation(rows: Sequence[Row], evaluation: Evaluation) -> list[Row]:
    """The rows of a run that continues: its last round may have been evaluated as the last."""
    before = rows[-2].clock if len(rows) > 1 else 0.0
    if not rows or evaluation.is_due(rows[-1], before):
        return list(rows)
    return [*rows[:-1], replace(rows[-1], accuracy=None, metrics={})]


def summarise(config: Settings, history: History, problem: Problem) -> dict[str, Any]:
    """The summary of a finished run, simulated or live."""
    return {
        "test_accuracy": history.test_accuracy,
        "test": {name: value if isfinite(value) else None for name, value in history.test.items()},
        "best_accuracy": history.best_accuracy,
        "rounds": len(history.rows),
        "stopped": history.stopped,
        "seconds": round(history.seconds, 3),
        "method": config.method,
        "average": config.average,
        "split": config.split,
        "seed": config.seed,
        "engine": history.engine,
        "why": history.why,
        "loss": history.loss,
        "data": problem.source,
        "layers": [layer.name for layer in problem.layers],
        "layer_parameters": [layer.size for layer in problem.layers],
        "versions": {**versions(), "python": platform.python_version()},
    }


def versions() -> dict[str, str]:
    """The versions of the packages on which numbers depend."""
    return {"salf": version(), "torch": torch.__version__, "numpy": np.__version__}


def of_simulation(config: Config, history: History, simulation: Simulation) -> dict[str, Any]:
    """More of the summary of a simulated run."""
    found = {"voice": _voice(simulation), **remembered(simulation.pipeline)}
    if not config.fleet:
        return {**found, "stragglers": config.stragglers}
    found |= {
        "simulated_seconds": history.rows[-1].clock,
        "fleet": config.fleet,
        "deadline": config.deadline,
        "batches": config.batches_for(simulation.method),
        "files": dict(config.files),
    }
    if isinstance(world := simulation.world, OnFleet):
        found["round"] = world.timing.shares(np.arange(world.users))
        found["lanes"] = lanes(history, simulation)
    return found


def _voice(simulation: Simulation) -> dict[str, Any] | None:
    """Each user's share of the applied weight, and each class's beside its share of the data."""
    shares, split = simulation.voice.parts(), simulation.data
    if not len(shares) or len(shares) > MOST_VOICES:
        return None
    found: dict[str, Any] = {"users": np.round(shares, 6).tolist(), "classes": [], "data": []}
    if isinstance(split, Partitioned) and split.has_classes:
        mixes = split.label_mixes()
        sizes = split.sizes(np.arange(len(shares))).astype(np.float64)
        found["classes"] = np.round(shares @ mixes, 6).tolist()
        found["data"] = np.round(sizes / sizes.sum() @ mixes, 6).tolist()
    return found


def remembered(pipeline: Pipeline) -> dict[str, Any]:
    """The memory that a method keeps of its users on the server."""
    if (recall := pipeline.recall) is None:
        return {}
    return {"remembered": {"users": len(recall.remembered), "bytes": recall.bytes}}
