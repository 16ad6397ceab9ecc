"""Ranks by accuracy at the budget: in each cell, and their mean over the cells."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from salf.bench.results import BenchRow, CellResult
from salf.bench.suite import BenchCell, Suite
from salf.methods import asks

DIGITS = 3  # of an accuracy in a table: what looks the same is the same


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
