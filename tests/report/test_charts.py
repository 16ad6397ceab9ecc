from itertools import pairwise

import pytest
from made_up import BASE, case, comparison, result, timed

from salf.report import charts, parts
from salf.report.charts import headings
from salf.runs.compare import Comparison
from salf.runs.config import Config


def points_of(figure):
    return figure.charts[0].points


def test_a_curve_is_the_mean_over_the_seeds_with_the_lowest_and_the_highest():
    runs = [result([0.2, None, 0.6]), result([0.4, None, 0.7])]
    drawn = charts.curves(Comparison(Config(), {case("salf"): runs}))
    points = [(p.x, p.mean, p.low, p.high) for p in points_of(drawn)]
    assert points == [(1, 0.3, 0.2, 0.4), (3, 0.65, 0.6, 0.7)]


def test_a_long_curve_is_thinned_but_keeps_its_end():
    runs = [result([0.5] * 1500)]
    drawn = charts.curves(Comparison(Config(rounds=1500), {case("salf"): runs}))
    rounds = [p.x for p in points_of(drawn)]
    assert len(rounds) <= 200
    assert rounds[-1] == 1500
    assert {b - a for a, b in pairwise(rounds)} == {8}


def test_a_panel_is_headed_by_what_differs_between_panels():
    one = comparison({case(method): [0.9] for method in ("salf", "drop")})
    (first, _) = one.results
    assert headings(one, first) == []
    assert headings(one, first, apart=False) == [
        "i.i.d.",
        "averaged over the users that reached a layer",
        "90 % stragglers",
    ]
    cases = [
        case("salf", ratio, average, split)
        for split in ("iid", "dirichlet:0.1")
        for average in ("reached", "all")
        for ratio in (0.3, 0.9)
    ]
    drawn = charts.curves(comparison({each: [0.9] for each in cases}))
    shown = list(drawn.charts[0].panels())
    assert len(shown) == 8
    assert shown[0] == "i.i.d.\naveraged over the users that reached a layer\n30 % stragglers"


def test_a_curve_over_seconds_interpolates_between_evaluations_of_different_times():
    runs = [timed("salf", [0.2, 0.4], 0.4), timed("salf", [0.2, 0.6], 0.6, seed=1, every=20.0)]
    compared = Comparison(BASE, {case("salf"): runs})
    points = points_of(charts.curves(compared))
    assert (points[0].x, points[0].low, points[0].high) == (20.0, 0.2, 0.4)
    assert (points[-1].x, points[-1].low, points[-1].high) == (40.0, 0.4, 0.6)
    middle = next(p for p in points if p.x >= 30)
    assert middle.high == pytest.approx(0.2 + 0.02 * (middle.x - 20), abs=1e-6)
    assert headings(compared, case("salf"), apart=False)[-1] == "phones, deadline 65 ms"


def test_colours_tell_methods_and_dashes_tell_batches():
    cases = [case("fedavg"), case("salf"), case("salf", batches="equal-time"), case("drop")]
    runs = {each: [timed(each.method, [0.5, 0.8], 0.8, batches=each.batches)] for each in cases}
    lines = charts.curves(Comparison(BASE, runs)).charts[0].lines
    assert [line.name for line in lines][1:3] == ["SALF", "SALF, equal-time"]
    assert lines[1].colour == lines[2].colour != lines[0].colour
    assert [line.dashed for line in lines] == [False, False, True, False]


def test_who_takes_part_is_a_part_of_the_users_asked():
    runs = {case("salf", ratio): [result([0.5], reached=(1, 3, 4))] for ratio in (0.3, 0.9)}
    (bars,) = parts.participation(charts.by_condition(Comparison(Config(), runs)), 5).charts
    assert bars.groups == ["SALF, 30 % stragglers", "SALF, 90 % stragglers"]
    assert [values[0] for values in bars.values] == pytest.approx([0.2, 0.6, 0.2])


def test_lanes_are_of_one_method_with_a_deadline_and_one_that_waits():
    pieces = [[[0.0, 1.0, 0], [1.0, 2.0, 3], [2.0, 3.0, -1]]]
    lanes = [{"round": 1, "seconds": 3.0, "deadline": 2.5, "users": [7], "pieces": pieces}]
    runs = {case(method): [timed(method, [0.5], 0.5)] for method in ("drop", "fedavg", "salf")}
    for each, (only,) in runs.items():
        deadline = None if each.method == "fedavg" else 2.5
        lane = {**lanes[0], "deadline": deadline}
        only.summary.update({"method": each.method, "lanes": [lane]})
    found = parts.swimlanes(charts.by_condition(Comparison(BASE, runs))).charts
    assert [chart.title for chart in found] == ["SALF, ", "FedAvg, "]
    kinds = [found[0].kinds[kind].name for _, _, kind in found[0].rounds[0]["pieces"][0]]
    assert kinds == ["download, upload", "layer 3 c", "work that is in no update"]
