from itertools import pairwise

import pytest
from made_up import BASE, case, comparison, result, timed

from salf.report import charts
from salf.report.charts import headings
from salf.runs.compare import Comparison
from salf.runs.config import Config


def records(spec):
    (values,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    return values


def test_a_curve_is_the_mean_over_the_seeds_with_the_lowest_and_the_highest():
    runs = [result([0.2, None, 0.6]), result([0.4, None, 0.7])]
    spec = charts.curves(Comparison(Config(), {case("salf"): runs}))
    points = [(r["x"], r["mean"], r["low"], r["high"]) for r in records(spec)]
    assert points == [(1, 0.3, 0.2, 0.4), (3, 0.65, 0.6, 0.7)]


def test_salf_is_drawn_last_and_keeps_its_place_in_the_legend():
    spec = charts.curves(comparison({case("salf"): [0.9], case("drop"): [0.8]}))
    assert [r["line"] for r in records(spec)] == ["Drop"] * 2 + ["SALF"] * 2
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["SALF", "Drop"]
    assert "http" not in str(spec)  # no address of a server


def test_a_long_curve_is_thinned_but_keeps_its_end():
    runs = [result([0.5] * 1500)]
    spec = charts.curves(Comparison(Config(rounds=1500), {case("salf"): runs}))
    rounds = [r["x"] for r in records(spec)]
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
    spec = charts.curves(comparison({each: [0.9] for each in cases}))
    shown = spec["facet"]["sort"]
    assert len(shown) == 8
    assert shown[0] == "i.i.d.\naveraged over the users that\nreached a layer\n30 % stragglers"
    assert spec["columns"] == 4


def test_a_curve_over_seconds_interpolates_between_evaluations_of_different_times():
    runs = [timed("salf", [0.2, 0.4], 0.4), timed("salf", [0.2, 0.6], 0.6, seed=1, every=20.0)]
    compared = Comparison(BASE, {case("salf"): runs})
    points = records(charts.curves(compared))
    assert (points[0]["x"], points[0]["low"], points[0]["high"]) == (20.0, 0.2, 0.4)
    assert (points[-1]["x"], points[-1]["low"], points[-1]["high"]) == (40.0, 0.4, 0.6)
    middle = next(p for p in points if p["x"] >= 30)
    assert middle["high"] == pytest.approx(0.2 + 0.02 * (middle["x"] - 20), abs=1e-6)
    assert headings(compared, case("salf"), apart=False)[-1] == "phones, deadline 65 ms"


def test_colours_tell_methods_and_dashes_tell_batches():
    cases = [case("fedavg"), case("salf"), case("salf", batches="equal-time"), case("drop")]
    runs = {each: [timed(each.method, [0.5, 0.8], 0.8, batches=each.batches)] for each in cases}
    spec = charts.curves(Comparison(BASE, runs))
    encoding = spec["layer"][0]["encoding"]
    assert encoding["color"]["scale"]["domain"][1:3] == ["SALF", "SALF, equal-time"]
    colours = encoding["color"]["scale"]["range"]
    assert colours[1] == colours[2] != colours[0]
    assert encoding["strokeDash"]["scale"]["range"] == [[1, 0], [1, 0], [5, 3], [1, 0]]
