from itertools import pairwise

import pytest
from made_up import case, comparison, result

from salf.report import charts
from salf.report.charts import Panels
from salf.report.comparison import page
from salf.runs.compare import Comparison
from salf.runs.config import Config


def records(spec):
    (values,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    return values


def headings(cases):
    panels = Panels(comparison({each: [0.9] for each in cases}))
    return [tuple(panels.place(case).values()) for case in panels.cases]


def reach(compared):
    (section,) = (s for s in page(compared, []).sections if s.heading.startswith("How many users"))
    return section.blocks[1:]


def test_a_curve_is_the_mean_over_the_seeds_with_the_lowest_and_the_highest():
    runs = [result([0.2, None, 0.6]), result([0.4, None, 0.7])]
    spec = charts.curves(Comparison(Config(), {case("salf"): runs}), "accuracy")
    points = [(r["x"], r["mean"], r["low"], r["high"]) for r in records(spec)]
    assert points == [(1, 0.3, 0.2, 0.4), (3, 0.65, 0.6, 0.7)]


def test_salf_is_drawn_last_and_keeps_its_place_in_the_legend():
    spec = charts.curves(comparison({case("salf"): [0.9], case("drop"): [0.8]}), "accuracy")
    assert [r["line"] for r in records(spec)] == ["Drop"] * 2 + ["SALF"] * 2
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["SALF", "Drop"]


def test_a_long_curve_is_thinned_but_keeps_its_end():
    runs = [result([0.5] * 1500)]
    spec = charts.curves(Comparison(Config(rounds=1500), {case("salf"): runs}), "accuracy")
    rounds = [r["x"] for r in records(spec)]
    assert len(rounds) <= 200
    assert rounds[-1] == 1500
    assert {b - a for a, b in pairwise(rounds)} == {8}


def test_users_that_reached_a_layer_are_averaged_over_rounds_and_seeds():
    """Layers whose name is a place in a sequence go by their number."""
    layers = ["0", "3", "head"]
    runs = [result([0.5], reached=r, layers=layers) for r in ((1, 2, 5), (2, 4, 5))]
    (table,) = reach(Comparison(Config(users=5), {case("salf"): runs}))
    assert table.columns == ["Method", "1", "2", "3 head"]
    assert table.rows == [["SALF", "1.5", "3.0", "5.0"]]


def test_users_are_shown_for_one_split_and_average_and_every_ratio():
    places = [(a, s) for a in ("reached", "all") for s in "xy"]
    tests = {case("salf", r, a, s): [0.9] for a, s in places for r in (0.3, 0.9)}
    assert [table.caption for table in reach(comparison(tests))] == [
        "30 % stragglers",
        "90 % stragglers",
    ]


def test_no_address_of_a_server_is_in_a_chart():
    tests = {case("salf", ratio): [0.9] for ratio in (0.3, 0.9)}
    assert "http" not in str(charts.over_ratios(comparison(tests)))


def test_one_panel_has_no_heading():
    cases = [case("salf"), case("drop")]
    assert set(headings(cases)) == {("", "")}
    assert Panels(comparison({each: [0.9] for each in cases})).shared() == [
        "i.i.d.",
        "averaged over the users that reached a layer",
        "90 % stragglers",
    ]


def test_splits_and_averages_are_columns_and_ratios_rows():
    cases = [
        case("salf", ratio, average, split)
        for split in ("iid", "dirichlet:0.1")
        for average in ("reached", "all")
        for ratio in (0.3, 0.9)
    ]
    found = headings(cases)
    assert len(set(found)) == 8
    assert found[0] == ("i.i.d.\naveraged over the users\nthat reached a layer", "30 % stragglers")
    spec = charts.curves(comparison({each: [0.9] for each in cases}), "accuracy")
    assert len(spec["facet"]["column"]["sort"]) == 4
    assert spec["facet"]["row"]["sort"] == ["30 % stragglers", "90 % stragglers"]


@pytest.mark.parametrize(
    ("cases", "columns", "rows"),
    [
        ([case("salf", ratio) for ratio in (0.3, 0.9)], 2, 1),  # ratios alone are columns
        ([case("salf", 0.9, a, s) for s in "xyz" for a in ("reached", "all")], 3, 2),  # too many
    ],
)
def test_panels_are_as_wide_as_can_be_seen(cases, columns, rows):
    found = headings(cases)
    assert (len({c for c, _ in found}), len({r for _, r in found})) == (columns, rows)
