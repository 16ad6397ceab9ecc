"""The runs of the suite: each is measured once, and what was measured is one small file."""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from sys import modules

from salf.common.errors import NoRoundInTime, SalfError, TrainingDiverged, in_one_line
from salf.common.files import folder_name, write_whole
from salf.methods import find
from salf.runs.compare import Clocked
from salf.runs.config import Config
from salf.runs.federation import data_files
from salf.runs.pool import Job, OnProgress, WorkersLike, run_all
from salf.runs.run import run
from salf.runs.training import SLOWEST, History, OnPart, counted

Key = tuple[str, float, int]  # of a run: its cell, learning rate and seed


@dataclass(frozen=True)
class BenchRun:
    """Measurements of one run. Times are simulated seconds, or rounds where there is no clock."""

    seed: int = 0
    accuracy: float | None = None  # on the test data
    held_out: float | None = None  # at the end, on held-out data
    slowest: float | None = None  # on the data of the slowest tenth of the users
    target: float | None = None  # accuracy on held-out data; known once the reference was run
    to_target: float | None = None  # time; None if it was not reached
    rounds: int = 0
    lost_work: float | None = None  # fractions of all that was done and sent
    lost_bytes: float | None = None
    failed: str = ""  # it diverged, or no round ended in time: the worst result there is
    curve: Sequence[tuple[float, float]] = ()  # (time, accuracy on held-out data)
    refused: str = ""  # the method cannot run here: no result

    @property
    def late_accuracy(self) -> float | None:
        """The mean on held-out data over the last quarter of the evaluations.

        With a learning rate that is too high, the last evaluation alone is a matter of luck.
        """
        late = [accuracy for _, accuracy in self.curve][-max(1, len(self.curve) // 4) :]
        return fmean(late) if late else None

    @classmethod
    def of(cls, config: Config, history: History) -> "BenchRun":
        clocked = Clocked.of(history, None) if history.rows[-1].clock is not None else None
        curve = history.timed_curve if clocked else history.curve
        return cls(
            config.seed,
            accuracy=_rounded(history.test_accuracy),
            held_out=_rounded(curve[-1][1]) if curve else None,
            slowest=_rounded(history.test.get(SLOWEST)),
            rounds=len(history.rows),
            lost_work=_rounded(clocked.lost_work) if clocked else None,
            lost_bytes=_rounded(clocked.lost_bytes) if clocked else None,
            curve=[(float(f"{at:.6g}"), round(accuracy, 5)) for at, accuracy in curve],
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def measure(
    folder: Path,
    workers: WorkersLike,
    configs: Mapping[Key, tuple[Config, float]],
    on_progress: OnProgress | None = None,
) -> dict[Key, BenchRun]:
    """Measure each of these (config, work), several at a time; equal configs are one run.

    Results that are in the folder are read from there.
    """
    files = {
        name: folder.absolute() / f"{key(config)}.json" for name, (config, _) in configs.items()
    }
    found = {str(file): _read(file) for file in files.values()}
    jobs = {
        str(file): Job(partial(_measure, config, file), work, file, data_files(config))
        for (config, work), file in zip(configs.values(), files.values(), strict=True)
        if found[str(file)] is None
    }
    found |= run_all(jobs, workers, on_progress).results
    return {name: run for name, file in files.items() if (run := found[str(file)]) is not None}


def key(config: Config) -> str:
    """A name for a run, with a digest of its settings and of the file that the method is in."""
    settings = json.dumps({**config.table(), "method_source": _source(config.method)}, default=str)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return f"{config.data}-{folder_name(config.method)}-{config.seed}-{digest}"


def _source(method: str) -> str:
    try:
        return inspect.getsource(modules[find(method).__module__])
    except (OSError, TypeError):
        return ""


def _measure(config: Config, path: Path, progress: OnPart) -> BenchRun:
    on_round = counted(config.rounds, config.seconds, progress)
    try:
        measured = BenchRun.of(config, run(config, on_round=on_round).history)
    except TrainingDiverged as error:
        measured = BenchRun(config.seed, failed=in_one_line(error))
    except NoRoundInTime:
        measured = BenchRun(config.seed, failed="no round ended within the budget")
    except SalfError as error:
        measured = BenchRun(config.seed, refused=in_one_line(error))
    write_whole(path, json.dumps(asdict(measured)) + "\n")
    return measured


def _read(path: Path) -> BenchRun | None:
    try:
        return BenchRun(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SalfError(f"{path} is not a run of the benchmark ({error}): delete it.") from None
