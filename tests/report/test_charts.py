from itertools import pairwise

from made_up import case, comparison, result

from salf.report import charts
from salf.report.panels import Panels
from salf.runs.compare import Comparison
from salf.runs.config import Config


def records(spec):
    (values,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    return values


def headings(panels):
    return [tuple(panels.place(case).values()) for case in panels.cases]


def test_a_curve_is_the_mean_over_the_seeds_with_the_lowest_and_the_highest():
    runs = [result([0.2, None, 0.6]), result([0.4, None, 0.7])]
    spec = charts.curves(Comparison(Config(), {case("salf"): runs}), "accuracy")
    points = [(r["x"], r["mean"], r["low"], r["high"]) for r in records(spec)]
    assert points == [(1, 0.3, 0.2, 0.4), (3, 0.65, 0.6, 0.7)]


def test_salf_is_drawn_last_and_keeps_its_place_in_the_legend():
    spec = charts.curves(comparison({case("salf"): [0.9], case("drop"): [0.8]}), "accuracy")
    assert [r["line"] for r in records(spec)] == ["Drop"] * 2 + ["SALF"] * 2
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["SALF", "Drop"]


def test_a_band_is_drawn_for_several_seeds_only():
    def marks(count):
        spec = charts.curves(comparison({case("salf"): [0.9] * count}), "accuracy")
        return [layer["mark"]["type"] for layer in spec["layer"]]

    assert marks(1) == ["line", "point"]
    assert marks(2) == ["area", "line", "point"]


def test_a_long_curve_is_thinned_but_keeps_its_end():
    runs = [result([0.5] * 1500)]
    spec = charts.curves(Comparison(Config(rounds=1500), {case("salf"): runs}), "accuracy")
    rounds = [r["x"] for r in records(spec)]
    assert len(rounds) <= 200
    assert rounds[-1] == 1500
    assert {b - a for a, b in pairwise(rounds)} == {8}


def test_users_that_reached_a_layer_are_averaged_over_rounds_and_seeds():
    runs = [result([0.5], reached=(1, 2, 5)), result([0.5], reached=(2, 4, 5))]
    spec = charts.reach(Comparison(Config(users=5), {case("salf"): runs}))
    assert [(r["layer"], r["users"]) for r in records(spec)] == [
        ("1 fc1", 1.5),
        ("2 fc2", 3.0),
        ("3 fc3", 5.0),
    ]


def test_layers_whose_name_is_a_place_in_a_sequence_go_by_their_number():
    spec = charts.reach(comparison({case("salf"): [0.9]}, layers=["0", "3", "head"]))
    assert [r["layer"] for r in records(spec)] == ["1", "2", "3 head"]


def test_users_are_shown_for_one_split_and_average():
    tests = {case("salf", average=a, split=s): [0.9] for a in ("reached", "all") for s in "xy"}
    assert len(records(charts.reach(comparison(tests)))) == 3


def test_no_address_of_a_server_is_in_a_chart():
    tests = {case("salf", ratio): [0.9] for ratio in (0.3, 0.9)}
    for chart in (charts.over_ratios, charts.reach):
        assert "http" not in str(chart(comparison(tests)))


def test_one_panel_has_no_heading():
    panels = Panels.of(comparison({case("salf"): [0.9], case("drop"): [0.9]}))
    assert set(headings(panels)) == {("", "")}
    assert panels.shared() == [
        "i.i.d.",
        "averaged over the users that reached a layer",
        "90 % stragglers",
    ]


def test_splits_and_averages_are_columns_and_ratios_rows():
    tests = {
        case("salf", ratio, average, split): [0.9]
        for split in ("iid", "dirichlet:0.1")
        for average in ("reached", "all")
        for ratio in (0.3, 0.9)
    }
    found = headings(Panels.of(comparison(tests)))
    assert len(set(found)) == 8
    assert found[0] == ("i.i.d.\naveraged over the users\nthat reached a layer", "30 % stragglers")
    spec = charts.curves(comparison(tests), "accuracy")
    assert len(spec["facet"]["column"]["sort"]) == 4
    assert spec["facet"]["row"]["sort"] == ["30 % stragglers", "90 % stragglers"]


def test_ratios_alone_are_columns():
    found = headings(Panels.of(comparison({case("salf", ratio): [0.9] for ratio in (0.3, 0.9)})))
    assert found == [("30 % stragglers", ""), ("90 % stragglers", "")]


def test_too_many_columns_become_rows():
    tests = {case("salf", 0.9, a, s): [0.9] for s in ("x", "y", "z") for a in ("reached", "all")}
    found = headings(Panels.of(comparison(tests)))
    assert {column for column, _ in found} == {"x", "y", "z"}
    assert len({row for _, row in found}) == 2
