"""One run and its folder: nothing is lost, and nothing is half written.

A folder holds config.toml, metrics.csv, model.safetensors, summary.json, and a checkpoint from
which an unfinished run goes on bit for bit.
"""

import csv
import fcntl
import io
import json
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_model

from salf.errors import SalfError, TrainingDiverged
from salf.experiments.config import Config, load_config
from salf.experiments.simulation import Simulation, snapshot
from salf.experiments.training import History, Row, Training, from_config
from salf.files import delete_left_over, whole_file, write_whole

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.csv", "summary.json"
MODEL, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"

OnRow = Callable[[Row], None]


class Stopped(KeyboardInterrupt):
    """A run was stopped after a round, on purpose. `on_row` may raise it, too."""


@dataclass(frozen=True)
class Result:
    """A finished run: its config, its history, and its summary as in summary.json."""

    config: Config
    history: History
    summary: dict[str, Any]


def run(
    config: Config,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = 10.0,
    on_row: OnRow | None = None,
    report: Callable[[str], None] | None = None,
) -> Result:
    """Run a config. With `out`, leave the run's folder there; with `resume`, go on in it.

    `checkpoint_every` is in seconds; `on_row` gets every round's metrics, `report` a line when
    data are being fetched, or when there is nothing to go on with.
    """
    if out is None:
        return _run(complete(config), None, checkpoint_every, on_row, report)
    folder = RunFolder(Path(out))
    with folder.locked():
        config = folder.claim(config, resume)
        if (finished := folder.result(config)) is not None:
            return finished
        if resume and report is not None and not (folder.path / CHECKPOINT).exists():
            report(f"{out} holds nothing to go on with yet: the run starts anew.")
        return _run(config, folder, checkpoint_every, on_row, report)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """$OMP_NUM_THREADS where it is a positive number, as torch itself does, else all cores."""
    named = os.environ.get("OMP_NUM_THREADS", "").strip()
    return (int(named) if named.isdecimal() else 0) or cores()


def complete(config: Config) -> Config:
    """The config with what depends on where it is run filled in: cores and paths."""
    kind, colon, path = config.data.partition(":")
    return config.changed(
        threads=config.threads or default_threads(),
        data=f"{kind}:{Path(path).absolute()}" if kind in ("idx", "folder") and colon else None,
        data_dir=str(Path(config.data_dir).absolute()) if config.data_dir else None,
    )


def _run(
    config: Config,
    folder: "RunFolder | None",
    checkpoint_every: float,
    on_row: OnRow | None,
    report: Callable[[str], None] | None,
) -> Result:
    torch.set_num_threads(config.threads)
    training = from_config(config, report)
    rows = [] if folder is None else folder.restore(training.simulation)
    try:
        saved = monotonic()
        with _interrupts_between_rounds() as interrupted:
            for row in training.rows(config.rounds, seconds=rows[-1].seconds if rows else 0.0):
                rows.append(row)
                if on_row is not None:
                    on_row(row)
                if folder is not None and monotonic() - saved >= checkpoint_every:
                    folder.save(training.simulation, rows)
                    saved = monotonic()
                if interrupted():
                    raise Stopped
    except (TrainingDiverged, Stopped):  # both come between two rounds: keep what there was
        if folder is not None and rows:
            folder.save(training.simulation, rows)
            folder.save_model(training.simulation)
        raise
    history = History(tuple(rows), training.test_accuracy())
    result = Result(config, history, _summary(config, history, training))
    if folder is not None:
        folder.finish(training.simulation, result)
    return result


@contextmanager
def _interrupts_between_rounds() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C take effect after the round, when the model and the metrics agree.

    The second Ctrl-C takes effect at once; the run then goes on from its last checkpoint.
    """
    asked = False

    def handler(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # Only the main thread may handle signals; a program that handles them itself goes on to.
    mine = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if mine:
        signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the system lets go of the folder when this one ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            files = [path for path in (self.path, *self.path.parents) if path.is_file()]
            why = f"{files[0]} is a file" if files else error.strerror
            raise SalfError(
                f"cannot use the folder {self.path}: {why}. Choose another --out."
            ) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SalfError(f"another process is working in {self.path}.") from None
            yield
        finally:
            os.close(handle)

    def claim(self, config: Config, resume: bool) -> Config:
        """Make the folder this run's, or refuse one that is another's; the complete config."""
        if not (self.path / CONFIG).exists():
            config = complete(config)
            write_whole(self.path / CONFIG, config.to_toml())
            return config
        there = load_config(str(self.path / CONFIG))
        # Unless told otherwise, go on with as many threads as it was begun with.
        config = complete(config.changed(threads=config.threads or there.threads))
        if differences := config.differences(there):
            raise SalfError(
                f"{self.path} holds a run with another config (it differs in "
                f"{', '.join(differences)}). Choose another --out."
            )
        if not resume:
            raise SalfError(
                f"{self.path} already holds this run. Add --resume to go on with it, or choose "
                "another --out."
            )
        delete_left_over(self.path, (CONFIG, METRICS, SUMMARY, MODEL, CHECKPOINT))
        return config

    def result(self, config: Config) -> Result | None:
        """The result, if the run is finished."""
        try:
            summary = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        rows = read_metrics(self.path / METRICS)
        return Result(config, History(tuple(rows), summary["test_accuracy"]), summary)

    def save(self, simulation: Simulation, rows: list[Row]) -> None:
        """Write the state after the last round, and the metrics so far."""
        tensors = {f"weights/{name}": tensor for name, tensor in simulation.engine.weights.items()}
        tensors |= {f"velocity/{n}": tensor for n, tensor in simulation.server.velocity.items()}
        for given, weights in simulation.old.items():
            tensors |= {f"old/{given}/{name}": tensor for name, tensor in weights.items()}
        tensors["memory"] = torch.from_numpy(simulation.memory)
        state = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        progress = {"rows": json.dumps([asdict(row) for row in rows])}
        write_whole(self.path / CHECKPOINT, save(state, progress))
        write_whole(self.path / METRICS, _metrics_csv(rows))

    def restore(self, simulation: Simulation) -> list[Row]:
        """Put a new simulation where the checkpoint is, and return the rows up to there."""
        try:
            with safe_open(self.path / CHECKPOINT, "pt") as stored:
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
                rows = [_row(entry) for entry in json.loads(stored.metadata()["rows"])]
        except FileNotFoundError:
            return []
        except (SafetensorError, KeyError, ValueError) as error:
            raise SalfError(
                f"{self.path / CHECKPOINT} cannot be read ({error}). Delete it to start anew."
            ) from None
        weights = simulation.engine.weights
        with torch.no_grad():
            for key, tensor in tensors.items():
                kind, _, name = key.partition("/")
                if kind == "weights":
                    weights[name].copy_(tensor)
                elif kind == "velocity":
                    simulation.server.velocity[name] = tensor.to(weights[name].device)
                elif kind == "old":
                    given, _, name = name.partition("/")
                    old = simulation.old.setdefault(int(given), snapshot(weights))
                    old[name].copy_(tensor)
        simulation.memory = np.asarray(tensors["memory"].numpy())
        simulation.t = rows[-1].round
        return rows

    def finish(self, simulation: Simulation, result: Result) -> None:
        """Write what a finished run leaves. The summary comes last: it says that all is there."""
        rows = list(result.history.rows)
        self.save(simulation, rows)
        self.save_model(simulation)
        write_whole(self.path / SUMMARY, json.dumps(result.summary, indent=2) + "\n")

    def save_model(self, simulation: Simulation) -> None:
        """Write the model as it is now, to be read with `safetensors.torch.load_model`."""
        with whole_file(self.path / MODEL) as temporary:
            save_model(simulation.model, str(temporary))


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics.csv."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            Row(
                int(line["round"]),
                float(line["train_loss"]),
                float(line["accuracy"]) if line["accuracy"] else None,
                tuple(int(n) for key, n in line.items() if key.startswith("reached_")),
                float(line["seconds"]),
            )
            for line in csv.DictReader(stream)
        ]


def _metrics_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    reached = [f"reached_{layer}" for layer in range(1, len(rows[0].reached) + 1)]
    writer.writerow(["round", "train_loss", "accuracy", *reached, "seconds"])
    for row in rows:
        accuracy = "" if row.accuracy is None else row.accuracy
        writer.writerow([row.round, row.train_loss, accuracy, *row.reached, f"{row.seconds:.4f}"])
    return text.getvalue()


def _row(entry: dict[str, Any]) -> Row:
    return Row(**{**entry, "reached": tuple(entry["reached"])})


def _summary(config: Config, history: History, training: Training) -> dict[str, Any]:
    return {
        "test_accuracy": history.test_accuracy,
        "best_accuracy": history.best_accuracy,
        "rounds": config.rounds,
        "seconds": round(history.rows[-1].seconds, 3),
        "method": config.method,
        "average": config.average,
        "stragglers": config.stragglers,
        "split": config.split,
        "seed": config.seed,
        "engine": training.simulation.engine.name,
        "data": training.source,
        "layers": [layer.name for layer in training.simulation.engine.layers],
        "versions": {
            "salf": version("salf"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
