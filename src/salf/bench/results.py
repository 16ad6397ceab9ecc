"""Results: one row per method, kept as one JSON file; the published ones come with the package."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from salf.bench.runs import Measured
from salf.bench.suite import POINTS, REFERENCE, Cell, Entrant, Suite
from salf.common.errors import SalfError
from salf.common.files import csv_text, write_whole
from salf.common.intervals import Interval, interval
from salf.runs.clocked import SHARE, seconds_to


@dataclass(frozen=True)
class Seeded:
    """A run of the results, with one seed."""

    seed: int
    accuracy: float | None = None
    held_out: float | None = None
    slowest: float | None = None
    target: float | None = None
    to_target: float | None = None  # simulated seconds, or rounds; None if it was not reached
    rounds: int = 0
    lost_work: float | None = None
    lost_bytes: float | None = None
    failed: str = ""


@dataclass(frozen=True)
class Outcome:
    """A method in one cell: its learning rate, and a run per seed; or why there is none."""

    lr: float | None = None
    tuning: Mapping[str, float | None] = field(default_factory=dict)  # accuracy by learning rate
    runs: Sequence[Seeded] = ()
    curve: Sequence[float | None] = ()  # mean accuracy at POINTS times, evenly spread
    refused: str = ""

    @property
    def failed(self) -> str:
        """Why the worst of the runs has no result, and how many have none."""
        reasons = [run.failed for run in self.runs if run.failed]
        if not reasons:
            return ""
        return f"{len(reasons)} of {len(self.runs)} seeds: {reasons[0]}"

    def over_seeds(self, what: str) -> Interval | None:
        """The mean of a measure and its interval; None unless every seed has it."""
        values = [getattr(run, what) for run in self.runs]
        return interval(values) if values and None not in values else None


@dataclass(frozen=True, eq=False)
class Row:
    """All results of a method."""

    entrant: Entrant
    version: int  # of the suite
    cells: Mapping[str, Outcome]
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """That of the method, as in the table."""
        return self.entrant.name

    def merged(self, older: "Row") -> "Row":
        """This row, and the cells that only an older one of the same version has."""
        if older.version != self.version:
            return self
        return replace(self, cells={**older.cells, **self.cells})


def outcome(
    cell: Cell,
    lr: float,
    tuning: Mapping[str, float | None],
    runs: Mapping[int, Measured],
    reference: Outcome | None,
) -> Outcome:
    """What the runs of a method in a cell come to; times to targets need the reference's."""
    refused = next((run.refused for run in runs.values() if run.refused), "")
    if refused:
        return Outcome(refused=refused)
    targets = {} if reference is None else {run.seed: run.held_out for run in reference.runs}
    seeded = []
    for seed, run in runs.items():
        final = targets.get(seed)
        target = None if final is None else round(SHARE * final, 5)
        seeded.append(
            Seeded(
                seed,
                _rounded(run.accuracy),
                _rounded(run.held_out),
                _rounded(run.slowest),
                target,
                None if target is None else seconds_to([(at, y) for at, y in run.curve], target),
                run.rounds,
                _rounded(run.lost_work),
                _rounded(run.lost_bytes),
                run.failed,
            )
        )
    curve = _mean_curve([run.curve for run in runs.values()], cell.scenario.budget)
    return Outcome(lr, tuning, seeded, curve)


def _mean_curve(curves: Iterable[Sequence[Sequence[float]]], budget: float) -> list[float | None]:
    """The mean over the runs of the latest accuracy at each time; None before the first."""
    grid = budget * np.arange(1, POINTS + 1) / POINTS
    found = []
    for curve in curves:
        at = np.array([point[0] for point in curve])
        values = np.array([np.nan, *(point[1] for point in curve)])
        found.append(values[np.searchsorted(at, grid * (1 + 1e-6), side="right")])
    if not found:
        return []
    mean = np.mean(found, axis=0)
    return [None if np.isnan(value) else round(float(value), 4) for value in mean]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def made_with() -> dict[str, str]:
    """The versions of what computes."""
    return {"salf": version("salf"), "torch": torch.__version__, "numpy": np.__version__}


# Files.


def write(folder: Path, row: Row, *, merge: bool = False) -> Path:
    """Write a row into a folder of rows; with `merge`, other cells that are there stay."""
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.+=-]', '_', row.name)}.json"
    if merge and path.exists():
        row = row.merged(read(path))
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
    write_whole(path, _compact(json.dumps(table, indent=1, ensure_ascii=False)) + "\n")
    return path


def _table(outcome: Outcome) -> dict[str, Any]:
    if outcome.refused:
        return {"refused": outcome.refused}
    return {key: value for key, value in asdict(outcome).items() if key != "refused"}


def _compact(text: str) -> str:
    """JSON with innermost lists and objects on one line each, so that a row can be read."""
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)


def read(path: Path) -> Row:
    """What `write` wrote."""
    try:
        table = json.loads(path.read_text("utf-8"))
        cells = {
            key: Outcome(**{**each, "runs": tuple(Seeded(**run) for run in each.get("runs", ()))})
            for key, each in table["cells"].items()
        }
        entrant = REFERENCE
        if table["name"] != REFERENCE.name:
            entrant = Entrant(table["method"], table["options"], table["settings"], table["name"])
        return Row(entrant, table["version"], cells, table["made_with"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SalfError(
            f"{path} is not a row of the benchmark ({type(error).__name__}: {error}): delete it."
        ) from None


def read_all(folder: Path) -> dict[str, Row]:
    """The rows of a folder by name."""
    rows = [read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    return {row.name: row for row in rows}


def published_folder() -> Path:
    """Where the results are that come with the package."""
    return Path(str(files("salf.bench") / "results"))


def usable(rows: Mapping[str, Row], suite: Suite, say: Callable[[str], None]) -> dict[str, Row]:
    """The rows of this version of the suite; of the others it is said why they are left out."""
    other = [row for row in rows.values() if row.version != suite.version]
    for row in other:
        say(
            f"{row.name} is left out: its results are from version {row.version} of the suite, "
            f"but this is version {suite.version}. Run it again."
        )
    return {name: row for name, row in rows.items() if row.version == suite.version}


COLUMNS = (
    "method", "data", "scenario", "seed", "lr", "accuracy", "slowest_tenth_accuracy", "target",
    "time_to_target", "unit", "rounds", "work_lost", "bytes_lost", "failed", "refused", "version",
)  # fmt: skip


def to_csv(suite: Suite, rows: Sequence[Row]) -> str:
    """One line per method, cell and seed."""
    return csv_text([COLUMNS, *_lines(suite, rows)])


def _lines(suite: Suite, rows: Sequence[Row]) -> Iterator[Sequence[Any]]:
    for row in rows:
        for cell in suite.cells:
            found = row.cells.get(cell.key)
            if found is None:
                continue
            unit = "seconds" if cell.scenario.clocked else "rounds"
            where = (row.name, cell.data, cell.scenario.key)
            if found.refused:
                yield [*where, *[""] * 11, found.refused, row.version]
            for run in found.runs:
                yield [
                    *where, run.seed, found.lr, run.accuracy, run.slowest, run.target,
                    run.to_target, unit, run.rounds, run.lost_work, run.lost_bytes, run.failed,
                    "", row.version,
                ]  # fmt: skip
