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

from torch import nn

from salf.common.errors import NoRoundInTime, SalfError, TrainingDiverged, in_one_line
from salf.common.files import folder_name, write_whole
from salf.core.rows import Row
from salf.methods import find
from salf.runs.clocked import Clocked
from salf.runs.config import Config
from salf.runs.pool import Job, OnProgress, Progress, run_all, share
from salf.runs.run import run
from salf.runs.training import SLOWEST, History


@dataclass(frozen=True)
class Measured:
    """What is kept of a run. Times are simulated seconds, or rounds where there is no clock."""

    accuracy: float | None = None  # on the test data
    held_out: float | None = None  # at the end, on held-out data
    slowest: float | None = None  # on the data of the slowest tenth of the users
    rounds: int = 0
    lost_work: float | None = None  # shares of all that was done and sent
    lost_bytes: float | None = None
    curve: Sequence[Sequence[float]] = ()  # (time, accuracy on held-out data)
    failed: str = ""  # it diverged, or no round ended in time: the worst result there is
    refused: str = ""  # the method cannot run here: no result

    @property
    def late_accuracy(self) -> float | None:
        """The mean on held-out data over the last quarter of the evaluations.

        A learning rate is chosen by it, because at one that is too high the last evaluation alone
        is a matter of luck.
        """
        late = [accuracy for _, accuracy in self.curve][-max(1, len(self.curve) // 4) :]
        return fmean(late) if late else None

    @classmethod
    def of(cls, history: History) -> "Measured":
        """Of a finished run."""
        clocked = Clocked.of(history, None) if history.rows[-1].clock is not None else None
        curve = history.timed_curve if clocked else history.curve
        return cls(
            accuracy=history.test_accuracy,
            held_out=curve[-1][1] if curve else None,
            slowest=history.test.get(SLOWEST),
            rounds=len(history.rows),
            lost_work=None if clocked is None else clocked.lost_work,
            lost_bytes=None if clocked is None else clocked.lost_bytes,
            curve=[(float(f"{at:.6g}"), round(accuracy, 5)) for at, accuracy in curve],
        )


def measure(
    configs: Sequence[tuple[Config, float]],
    folder: Path,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Measured]:
    """Measure each of these (config, work), several at a time, and return what came out by key.

    What was measured before is read from the folder.
    """
    works = {key(config): (config, work) for config, work in configs}
    found = {name: _read(folder / f"{name}.json") for name in works}
    jobs = {
        name: Job(partial(_measure, config, folder / f"{name}.json"), work)
        for name, (config, work) in works.items()
        if found[name] is None
    }
    if jobs:
        found |= run_all(jobs, workers, on_progress).results
    return {name: measured for name, measured in found.items() if measured is not None}


def key(config: Config) -> str:
    """A name for a run: what it is of, and a digest of all that it depends on."""
    settings = json.dumps({**config.table(), "method_source": _source(config.method)}, default=str)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return f"{config.data}-{folder_name(config.method)}-{config.seed}-{digest}"


def _source(method: str) -> str:
    """The file that the method is in, which may have changed since."""
    try:
        return inspect.getsource(modules[find(method).__module__])
    except (OSError, TypeError):
        return ""


def _measure(config: Config, path: Path, progress: Progress) -> Measured:
    def on_round(row: Row, model: nn.Module) -> None:
        progress(share(row, config.rounds, config.seconds))

    try:
        measured = Measured.of(run(config, on_round=on_round).history)
    except TrainingDiverged as error:
        measured = Measured(failed=in_one_line(error))
    except NoRoundInTime:
        measured = Measured(failed="no round ended within the budget")
    except SalfError as error:
        measured = Measured(refused=in_one_line(error))
    write_whole(path, json.dumps(asdict(measured)) + "\n")
    return measured


def _read(path: Path) -> Measured | None:
    try:
        table: Mapping[str, object] = json.loads(path.read_text("utf-8"))
        return Measured(**table)  # type: ignore[arg-type]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SalfError(f"{path} is not a run of the benchmark ({error}): delete it.") from None
