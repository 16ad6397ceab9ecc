"""The benchmark's tables and page, from made-up results."""

import pytest

from salf.bench.results import BenchRow, BenchRun, CellResult
from salf.bench.suite import Entrant, load
from salf.report.bench import Standings, to_target
from salf.report.tables import Bold

SUITE = load("digits").only(["mixture", "phones", "sessions"])


def of(accuracy, *, to_target=(10.0, 14.0), **more):
    runs = [
        BenchRun(seed, accuracy, slowest=0.5, target=0.8, to_target=each, lost_work=0.25,
               lost_bytes=0.1, **more)
        for seed, each in enumerate(to_target)
    ]  # fmt: skip
    return CellResult(0.1, {"0.1": 0.7}, runs, [None, *[accuracy] * 39])


def rows():
    def row(entrant, **cells):
        return BenchRow(entrant, 1, {f"digits/{name}": each for name, each in cells.items()})

    late = CellResult(0.1, {"0.1": None}, [BenchRun(0, failed="too slow"), BenchRun(1, 0.9)])
    return [
        row(Entrant("fedavg"), mixture=of(0.95), phones=of(0.7), sessions=late),
        row(
            Entrant("salf", {}, {"batches": "equal-time"}),
            mixture=of(0.9),
            phones=of(0.9),
            sessions=of(0.8, to_target=(7200.0, 14400.0)),
        ),
        row(
            Entrant("asyncfl", {"buffer": 2}),
            mixture=CellResult(refused="it needs a clock."),
            phones=of(0.8, to_target=(10.0, None)),
        ),
    ]


def cells(table):
    return {row[0]: list(row[1:]) for row in table.rows}


def test_the_table_of_ranks_has_the_best_first_and_says_over_how_many():
    found = cells(Standings(SUITE, rows()).ranks())
    assert list(found) == ["SALF, equal-time", "AsyncFL(buffer=2)", "FedAvg (waits)"]
    assert found["SALF, equal-time"] == ["1.0", "1", "1", "1"]
    assert found["AsyncFL(buffer=2)"] == ["2.0 (of 1)", "–", "2", "–"]
    assert found["FedAvg (waits)"] == ["2.5 (of 2)", "–", "3", "2"]


def test_a_method_of_one_s_own_is_marked_and_compared_with_salf_seed_by_seed():
    salf, mine = Entrant("salf"), Entrant("drop", {}, {}, "Mine")
    runs = {
        salf: {"phones": (0.8, 0.9), "sessions": (0.5, 0.5), "mixture": (0.7, 0.7)},
        mine: {"phones": (0.85, 0.85), "sessions": (0.6, 0.6), "mixture": (0.6, 0.6)},
    }
    both = [
        BenchRow(
            entrant,
            1,
            {
                f"digits/{name}": CellResult(
                    0.1, {}, [BenchRun(*each) for each in enumerate(seeds)]
                )
                for name, seeds in cells.items()
            },
        )
        for entrant, cells in runs.items()
    ]
    standings = Standings(SUITE, both, ["Mine"])
    (table,) = standings.beside_salf()
    assert cells(table) == {
        "Mixture, digits (8x8 images)": ["0.600 ±0.000", "−0.100 ±0.000", "behind"],
        "Phones, digits (8x8 images)": ["0.850 ±0.000", "+0.000 ±0.635", "tie"],
        "Sessions, digits (8x8 images)": ["0.600 ±0.000", "+0.100 ±0.000", "ahead"],
    }
    assert cells(standings.ranks())["Mine"][-1] == "1, 1, 1"
    html = standings.page([]).html()
    assert '<tr class="own"><th scope="row">Mine</th>' in html
    assert "behind in 1, tie in 1 and ahead in 1 of 3 cells." in html
    assert not Standings(SUITE, both, ["Mine", "salf"]).ranks().own  # there is no other


def test_accuracies_have_intervals_and_the_best_that_is_ranked_stands_out():
    table = Standings(SUITE, rows()).accuracies("digits")
    found = cells(table)
    assert found["FedAvg (waits)"] == ["0.950 ±0.000", "0.700 ±0.000", "failed"]
    assert found["AsyncFL(buffer=2)"] == ["–", "0.800 ±0.000", "–"]
    bold = {
        (row[0], i) for row in table.rows for i, cell in enumerate(row) if isinstance(cell, Bold)
    }
    assert bold == {("SALF, equal-time", 2), ("SALF, equal-time", 3)}


def test_gaps_are_explained():
    assert Standings(SUITE, rows()).gaps() == [
        "AsyncFL(buffer=2) cannot run in Mixture (digits (8x8 images)): it needs a clock.",
        "AsyncFL(buffer=2) was not run in Sessions (digits (8x8 images)).",
        "FedAvg (waits) failed in Sessions (digits (8x8 images)): 1 of 2 seeds: too slow",
    ]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ((10.0, 14.0), "12 ±25"),
        ((10.0, None), "1 of 2 reached"),
        ((None, None), "not reached"),
        ((36000.0, 36000.0), "10 ±0 h"),
        ((10.0,), "10"),
    ],
)
def test_times_to_the_target(times, wanted):
    assert to_target(of(0.5, to_target=times)) == wanted


def test_the_page_has_it_all():
    html = Standings(SUITE, rows()).page(["bench", "--suite", "digits"]).html()
    for part in (
        "suite digits, version 2",
        "0.900 ±0.000",
        "Rank by accuracy at the budget",
        "slowest tenth",
        "25% / 10%",
        "it needs a clock.",
        "salf bench --suite digits",
        "Sessions (sessions; 7 days, deadline 60 minutes)",
    ):
        assert part in html, part
