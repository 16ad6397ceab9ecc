"""Ranks by accuracy at the budget: in each cell, and their mean over the cells."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from salf.bench.results import Outcome, Row
from salf.bench.suite import Cell, Suite
from salf.methods import asks

DIGITS = 3  # of an accuracy in a table: what looks the same is the same


def score(outcome: Outcome) -> float | None:
    """What is ranked: the mean accuracy over the seeds; below all others if one has no result."""
    if outcome.refused or not outcome.runs:
        return None
    found = outcome.over_seeds("accuracy")
    return -1.0 if outcome.failed or found is None else round(found.mean, DIGITS)


def is_ranked(row: Row, cell: Cell) -> bool:
    """Whether a rank would mean something: waiting costs nothing where there is no clock."""
    return cell.scenario.clocked or not asks(row.entrant.method).waits


def ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """The best is 1. Equal scores share the mean of their places, as in 1, 2.5, 2.5, 4."""
    values = list(scores.values())
    return {
        name: sum(other > value for other in values) + (values.count(value) + 1) / 2
        for name, value in scores.items()
    }


def in_cell(rows: Sequence[Row], cell: Cell) -> dict[str, float]:
    """The rank of every row that has a result there and is ranked."""
    scores = {
        row.name: found
        for row in rows
        if cell.key in row.cells and is_ranked(row, cell)
        if (found := score(row.cells[cell.key])) is not None
    }
    return ranks(scores)


def mean_ranks(rows: Sequence[Row], suite: Suite) -> dict[str, tuple[float, int]]:
    """(mean rank, number of cells it is over) of every row that is ranked anywhere."""
    found: dict[str, list[float]] = {}
    for cell in suite.cells:
        for name, rank in in_cell(rows, cell).items():
            found.setdefault(name, []).append(rank)
    return {name: (fmean(each), len(each)) for name, each in found.items()}


def ordered(rows: Sequence[Row], suite: Suite) -> list[Row]:
    """From the lowest mean rank on; rows without a rank come last."""
    means = mean_ranks(rows, suite)
    return sorted(rows, key=lambda row: (means.get(row.name, (float("inf"), 0))[0], row.name))
