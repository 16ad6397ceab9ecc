"""Results: one row per method, kept as one JSON file; the published ones come with the package."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from salf.bench.suite import POINTS, REFERENCE, BenchCell, Entrant, Suite
from salf.common import Report
from salf.common.errors import SalfError
from salf.common.files import json_text, write_whole
from salf.common.intervals import Interval, interval
from salf.methods import asks
from salf.runs.compare import SHARE, Clocked, seconds_to
from salf.runs.config import Config
from salf.runs.training import SLOWEST, History

DIGITS = 3  # of an accuracy in a table: what looks the same is the same


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


@dataclass(frozen=True)
class CellResult:
    """A method in one cell: its learning rate, and a run per seed; or why there is none."""

    lr: float | None = None
    tuning: Mapping[str, float | None] = field(default_factory=dict)  # accuracy by learning rate
    runs: Sequence[BenchRun] = ()
    curve: Sequence[float | None] = ()  # mean accuracy at POINTS times, evenly spread
    refused: str = ""

    @property
    def failed(self) -> str:
        """How many runs failed, and why the first of them did."""
        reasons = [run.failed for run in self.runs if run.failed]
        return f"{len(reasons)} of {len(self.runs)} seeds: {reasons[0]}" if reasons else ""

    def over_seeds(self, what: str) -> Interval | None:
        """The mean of a measure and its interval; None unless every seed has it."""
        values = [getattr(run, what) for run in self.runs]
        return interval(values) if values and None not in values else None


@dataclass(frozen=True, eq=False)
class BenchRow:
    """All results of a method."""

    entrant: Entrant
    version: int  # of the suite
    cells: Mapping[str, CellResult]
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.entrant.name


def cell_result(
    cell: BenchCell,
    lr: float,
    tuning: Mapping[float, float | None],
    runs: Sequence[BenchRun],
    reference: CellResult | None,
) -> CellResult:
    """The result of a method's runs in a cell; targets come from the reference's result there."""
    if refused := next((run.refused for run in runs if run.refused), ""):
        return CellResult(refused=refused)
    finals = {} if reference is None else {run.seed: run.held_out for run in reference.runs}
    return CellResult(
        lr,
        {f"{rate:g}": accuracy for rate, accuracy in tuning.items()},
        tuple(_with_target(run, finals.get(run.seed)) for run in runs),
        _mean_curve(runs, cell.scenario.budget),
    )


def _with_target(run: BenchRun, final: float | None) -> BenchRun:
    """The run without its curve, and when it reached the target."""
    if final is None:
        return replace(run, curve=())
    target = round(SHARE * final, 5)
    return replace(run, curve=(), target=target, to_target=seconds_to(run.curve, target))


def _mean_curve(runs: Sequence[BenchRun], budget: float) -> list[float | None]:
    """The mean over the runs of the latest accuracy at each time; None before the first."""
    grid = budget * np.arange(1, POINTS + 1) / POINTS
    found = []
    for run in runs:
        at = np.array([point[0] for point in run.curve])
        values = np.array([np.nan, *(point[1] for point in run.curve)])
        found.append(values[np.searchsorted(at, grid * (1 + 1e-6), side="right")])
    mean = np.mean(found, axis=0)
    return [None if np.isnan(value) else round(float(value), 4) for value in mean]


def write(folder: Path, row: BenchRow) -> Path:
    """Write a row into a folder of rows."""
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.+=-]', '_', row.name)}.json"
    entrant = row.entrant
    table = {
        "name": row.name,
        "version": row.version,
        "method": entrant.method,
        "options": dict(entrant.options),
        "settings": dict(entrant.settings),
        "made_with": dict(row.made_with),
        "cells": {key: _table(each) for key, each in sorted(row.cells.items())},
    }
    write_whole(path, json_text(table))
    return path


def _table(result: CellResult) -> dict[str, Any]:
    table = asdict(result)
    if (refused := table.pop("refused")) != "":
        return {"refused": refused}
    for run in table["runs"]:
        del run["curve"], run["refused"]
    return table


def read(path: Path) -> BenchRow:
    """Read a row that `write` wrote."""
    try:
        table = json.loads(path.read_text("utf-8"))
        cells = {
            key: CellResult(
                **{**each, "runs": tuple(BenchRun(**run) for run in each.get("runs", ()))}
            )
            for key, each in table["cells"].items()
        }
        entrant = REFERENCE
        if table["name"] != REFERENCE.name:
            entrant = Entrant(table["method"], table["options"], table["settings"], table["name"])
        return BenchRow(entrant, table["version"], cells, table["made_with"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SalfError(
            f"{path} is not a row of the benchmark ({type(error).__name__}: {error}): delete it."
        ) from None


def read_all(folder: Path) -> dict[str, BenchRow]:
    """The rows of a folder by name."""
    return {row.name: row for row in map(read, sorted(folder.glob("*.json")))}


def published_folder() -> Path:
    """Where the results are that come with the package."""
    return Path(str(files("salf.bench") / "results"))


def published(suite: Suite, say: Report) -> dict[str, BenchRow]:
    """The published rows of this version of the suite; `say` gets a line about each other."""
    rows = read_all(published_folder())
    for row in [row for row in rows.values() if row.version != suite.version]:
        del rows[row.name]
        say(
            f"{row.name} is left out: its results are from version {row.version} of the suite, "
            f"but this is version {suite.version}. Run it again."
        )
    return rows


def shown(suite: Suite, rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows that have a result in the suite, the last of each name, without the reference."""
    by_name = {row.name: row for row in rows if any(cell.key in row.cells for cell in suite.cells)}
    by_name.pop(REFERENCE.name, None)
    return list(by_name.values())


def records(suite: Suite, rows: Sequence[BenchRow]) -> Iterator[dict[str, Any]]:
    """The lines of results.csv: one per method, cell and seed."""
    for row, cell in product(rows, suite.cells):
        result = row.cells.get(cell.key, CellResult())
        place = {"method": row.name, "data": cell.data, "scenario": cell.scenario.key}
        unit = "seconds" if cell.scenario.clocked else "rounds"
        refused = [BenchRun(refused=result.refused)] if result.refused else []
        for run in refused or result.runs:
            measured = asdict(run)
            del measured["curve"]
            yield {**place, "lr": result.lr, **measured, "unit": unit, "version": row.version}


# ---- ranks by accuracy at the budget: in each cell, and their mean over the cells ----


def score(result: CellResult) -> float | None:
    """The mean accuracy over the seeds; below all others if a seed failed, None if none was run."""
    if result.refused or not result.runs:
        return None
    found = result.over_seeds("accuracy")
    return -1.0 if result.failed or found is None else round(found.mean, DIGITS)


def ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """The best is 1. Equal scores share the mean of their places, as in 1, 2.5, 2.5, 4."""
    from scipy.stats import rankdata  # takes half a second

    return dict(zip(scores, rankdata([-each for each in scores.values()]).tolist(), strict=True))


def in_cell(rows: Sequence[BenchRow], cell: BenchCell) -> dict[str, float]:
    """The rank of every row that has a result there.

    A method that waits has none without a clock, because waiting costs nothing there.
    """
    return ranks(
        {
            row.name: found
            for row in rows
            if cell.key in row.cells
            if cell.scenario.clocked or not asks(row.entrant.method).waits
            if (found := score(row.cells[cell.key])) is not None
        }
    )


def mean_ranks(rows: Sequence[BenchRow], suite: Suite) -> dict[str, tuple[float, int]]:
    """(mean rank, number of cells it is over) of every row that is ranked anywhere."""
    found: dict[str, list[float]] = {}
    for cell in suite.cells:
        for name, rank in in_cell(rows, cell).items():
            found.setdefault(name, []).append(rank)
    return {name: (fmean(each), len(each)) for name, each in found.items()}


def ordered(rows: Sequence[BenchRow], suite: Suite) -> list[BenchRow]:
    """From the lowest mean rank on; rows without a rank come last."""
    means = mean_ranks(rows, suite)
    return sorted(rows, key=lambda row: (means.get(row.name, (float("inf"), 0))[0], row.name))
