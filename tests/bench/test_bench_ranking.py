"""Ranks, against numbers worked out by hand."""

import pytest

from salf.bench import results as ranking
from salf.bench.results import BenchRow, BenchRun, CellResult
from salf.bench.suite import Entrant, load

SUITE = load("digits")
MIXTURE, PHONES, DIRICHLET, *_ = SUITE.cells


def of(*accuracies, failed=""):
    runs = [BenchRun(seed, accuracy) for seed, accuracy in enumerate(accuracies)]
    return CellResult(0.1, runs=[*runs, *([BenchRun(9, failed=failed)] if failed else [])])


def row(method, **cells):
    keys = {"mixture": MIXTURE.key, "phones": PHONES.key, "dirichlet": DIRICHLET.key}
    return BenchRow(Entrant(method), 1, {keys[name]: outcome for name, outcome in cells.items()})


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ({"a": 0.9, "b": 0.8, "c": 0.7}, {"a": 1, "b": 2, "c": 3}),
        ({"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.7}, {"a": 1, "b": 2.5, "c": 2.5, "d": 4}),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, {"a": 2, "b": 2, "c": 2}),
        ({"a": -1.0, "b": 0.1}, {"a": 2, "b": 1}),
        ({}, {}),
    ],
)
def test_ranks_and_ties(scores, wanted):
    assert ranking.ranks(scores) == wanted


@pytest.mark.parametrize(
    ("drop", "salf", "wanted"),
    [
        (of(0.91204), of(0.91196), {"drop": 1.5, "salf": 1.5}),  # what looks the same ties
        (of(0.9, 0.5), of(0.8, 0.8), {"salf": 1, "drop": 2}),  # means over the seeds
        (of(0.99, 0.99, failed="diverged"), of(0.1), {"salf": 1, "drop": 2}),  # with one seed
    ],
)
def test_ranks_in_a_cell(drop, salf, wanted):
    assert ranking.in_cell([row("drop", phones=drop), row("salf", phones=salf)], PHONES) == wanted


def test_missing_cells_have_no_rank_and_the_mean_is_over_the_others():
    refused = CellResult(refused="needs a clock")
    rows = [
        row("drop", mixture=of(0.5), phones=of(0.5), dirichlet=of(0.9)),
        row("salf", mixture=of(0.6), phones=of(0.6)),
        row("asyncfl", mixture=refused, phones=of(0.4), dirichlet=of(0.8)),
    ]
    means = ranking.mean_ranks(rows, SUITE)
    assert means == {"drop": (5 / 3, 3), "salf": (1.0, 2), "asyncfl": (2.5, 2)}
    assert [each.name for each in ranking.ordered(rows, SUITE)] == ["salf", "drop", "asyncfl"]


def test_waiting_has_no_rank_where_it_costs_nothing():
    rows = [
        row("fedavg", mixture=of(0.99), phones=of(0.9)),
        row("salf", mixture=of(0.6), phones=of(0.8)),
    ]
    assert ranking.in_cell(rows, MIXTURE) == {"salf": 1}
    assert ranking.in_cell(rows, PHONES) == {"fedavg": 1, "salf": 2}
