"""A comparison by the simulated clock, in tables, words and charts."""

from io import StringIO

import pytest
from made_up import case
from rich.console import Console
from test_charts import records
from test_comparison import bold, texts

from salf.core.rows import Row
from salf.report import charts, seconds
from salf.report.charts import Panels
from salf.report.comparison import page, print_tables, tables, write_report
from salf.runs.clocked import Clocked
from salf.runs.compare import Case, Comparison
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.training import History
from salf.worlds.fleet.named import assumed

BASE = Config(users=4, fleet="phones", deadline=0.065, seconds=40.0, rounds=0)


def timed(method, accuracies, test, slowest=0.5, seed=0, every=10.0, batches="equal", **more):
    """A run that is evaluated after each of its rounds, which take `every` seconds."""
    rows = tuple(
        Row(t, 1 / t, (1, 2, 4), accuracy, clock=every * t, **more)
        for t, accuracy in enumerate(accuracies, 1)
    )
    measured = {"accuracy": test, "slowest_tenth_accuracy": slowest}
    config = BASE.changed(method=method, seed=seed, batches=batches)
    return Result(config, History(rows, measured), {"seed": seed, "layers": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def compared():
    """FedAvg reaches its target after 40 s; SALF after 10 s and Drop never."""
    equal_time = Case("salf", "reached", "iid", 0.9, "equal-time")
    waste = {"waited": 8.0, "work": 4.0, "wasted_work": 1.0, "bytes": 10.0, "wasted_bytes": 5.0}
    return Comparison(
        BASE,
        {
            case("fedavg"): [
                timed("fedavg", [0.5, 0.6, 0.7, 0.8], 0.80, waited=20.0),
                timed("fedavg", [0.5, 0.6, 0.7, 0.8], 0.82, seed=1, waited=20.0),
            ],
            case("salf"): [
                timed("salf", [0.6, 0.77, 0.78], 0.78, 0.4, every=5.0),
                timed("salf", [0.6, 0.77, 0.78], 0.79, 0.4, seed=1, every=5.0),
            ],
            equal_time: [
                timed("salf", [0.6, 0.77], 0.85, 0.6, every=20.0, batches="equal-time"),
                timed("salf", [0.6, 0.7], 0.81, 0.5, seed=1, every=20.0, batches="equal-time"),
            ],
            case("drop"): [
                timed("drop", [0.3], 0.3, 0.1, every=5.0, **waste),
                timed("drop", [0.3], 0.3, 0.1, seed=1, every=5.0, **waste),
            ],
        },
    )


def printed(comparison):
    stream = StringIO()
    print_tables(comparison, Console(file=stream, width=80))
    return stream.getvalue()


def test_a_row_answers_what_a_method_has_at_the_budget_and_when_it_got_there(compared):
    (table,) = tables(compared)
    assert [" | ".join(row) for row in texts(table)] == [
        "FedAvg (waits) | 0.810 ±0.014 | 0.500 ±0.000 | 4 | 40 ±0 | 20 | 0% | 0%",
        "SALF | 0.785 ±0.007 | 0.400 ±0.000 | 3 | 10 ±0 | 0 | 0% | 0%",
        "SALF, equal-time | 0.830 ±0.028 | 0.550 ±0.071 | 2 | 1 of 2 reached | 0 | 0% | 0%",
        "Drop | 0.300 ±0.000 | 0.100 ±0.000 | 1 | not reached | 2 | 25% | 50%",
    ]


def test_the_highest_accuracy_and_the_shortest_time_of_all_methods_stand_out(compared):
    accuracy_and_time = [(row[0], row[3]) for row in bold(tables(compared)[0])]
    assert accuracy_and_time == [(False, False), (False, True), (True, False), (False, False)]


def test_words_say_who_is_faster_who_is_worse_and_who_never_gets_there(compared):
    salf, against_drop, equal_time, drop, caveat = seconds.sentences(compared)
    assert salf == (
        "SALF reaches 95 % of FedAvg's final accuracy 4 times as fast as FedAvg (10 s against "
        "40 s); at the end its test accuracy is 0.025 lower than that of FedAvg, and its "
        "accuracy on the slowest tenth's data is 0.100 lower than that of FedAvg."
    )
    assert "after 10 s, Drop does not; at the end its test accuracy is 0.485 higher" in against_drop
    assert equal_time.startswith(
        "SALF with equal-time batches does not reach 95 % of FedAvg's final accuracy with 1 of 2 "
        "seeds; at the end its test accuracy is 0.020 higher than that of FedAvg (not with every "
        "seed)"
    )
    assert drop.startswith("Drop does not reach 95 % of FedAvg's final accuracy; at the end")
    assert caveat.startswith("Device speeds of the fleet phones are assumed, more than a thousand")
    out = printed(compared)
    assert salf in out
    assert "after 40 s of simulated time with phones, deadline 65 ms, mean" in out
    assert "95 % of FedAvg's at the end (0.760)" in out
    assert "stragglers" not in out
    assert Panels(compared).shared()[-1] == "phones, deadline 65 ms"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (
            timed("salf", [0.1, 0.8], 0.8),
            "takes 2 times as long as FedAvg to reach 95 % of FedAvg's final accuracy (20 s "
            "against 10 s); at the end its test accuracy is the same as that of FedAvg",
        ),
        (timed("salf", [0.8], 0.8, every=10.3), "about as fast as FedAvg (10.3 s against 10 s)"),
    ],
)
def test_who_takes_as_long_as_fedavg_or_longer_is_said_to(run, told):
    runs = {case("fedavg"): [timed("fedavg", [0.8], 0.8)], case("salf"): [run]}
    assert told in seconds.sentences(Comparison(BASE, runs))[0]


def test_a_given_target_needs_no_fedavg():
    alone = {case("salf"): [timed("salf", [0.5, 0.7], 0.7)]}
    assert texts(tables(Comparison(BASE, alone, goal=0.6))[0])[0][4] == "20"
    assert "at or above an accuracy of 0.6." in printed(Comparison(BASE, alone, goal=0.6))
    without = Comparison(BASE, alone)
    assert texts(tables(without)[0])[0][4] == "–"
    assert "needs fedavg among the methods, or a target" in printed(without)


def test_a_curve_over_seconds_interpolates_between_evaluations_of_different_times():
    runs = [timed("salf", [0.2, 0.4], 0.4), timed("salf", [0.2, 0.6], 0.6, seed=1, every=20.0)]
    points = records(
        charts.curves(Comparison(BASE, {case("salf"): runs}), "accuracy", over="clock")
    )
    assert (points[0]["x"], points[0]["low"], points[0]["high"]) == (20.0, 0.2, 0.4)
    assert (points[-1]["x"], points[-1]["low"], points[-1]["high"]) == (40.0, 0.4, 0.6)
    middle = next(p for p in points if p["x"] >= 30)
    assert middle["high"] == pytest.approx(0.2 + 0.02 * (middle["x"] - 20), abs=1e-6)


def test_colours_tell_methods_and_dashes_tell_batches(compared):
    encoding = charts.curves(compared, "accuracy", over="clock")["layer"][1]["encoding"]
    assert encoding["color"]["scale"]["domain"][1:3] == ["SALF", "SALF, equal-time"]
    colours = encoding["color"]["scale"]["range"]
    assert colours[1] == colours[2] != colours[0]
    assert encoding["strokeDash"]["scale"]["range"] == [[1, 0], [1, 0], [5, 3], [1, 0]]


def test_the_page_shows_seconds_first_then_rounds_and_reach(compared):
    assert [section.heading for section in page(compared, ["compare"]).sections] == [
        "Accuracy on held-out data over simulated seconds",
        "Accuracy on held-out data over the rounds",
        "How many users reached each layer",
        "Reproduce this page",
    ]


@pytest.mark.slow
def test_the_picture_is_over_seconds(compared, tmp_path):
    written = write_report(compared, tmp_path, ["compare"])
    assert [path.name for path in written] == ["accuracy.png", "accuracy.svg", "report.html"]
    assert "Simulated seconds" in written[1].read_text()


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([337.0, 100.0, 570.0], "336 ±235"),
        ([10.0, 10.0, 250.0], "90 ±139"),
        ([1.0, 1.5, 2.0], "1.5 ±0.5"),
    ],
)
def test_numbers_of_a_table_are_plain(times, said):
    runs = [Clocked(1, 900.0, 0.9, time, 0.0, 0.0, 0.0, None) for time in times]
    assert seconds._to_target(runs) == said


def test_assumed_speeds_are_said_of_named_fleets_only():
    assert "the fleet phones are assumed, more than a thousand times slower" in assumed("phones")
    assert assumed("edge:mean=0.4").startswith("Device speeds of the fleet edge are assumed, with")
    assert assumed("phones:speed=1e10") == assumed("devices.csv") == assumed("mypkg:Fleet") == ""
