"""Lines in panels: what is drawn of which points."""

import vl_convert

from salf.report.lines import Line, Lines, Point, figure
from salf.report.style import Axis

SALF, DROP = Line("SALF", "#D55E00", bold=True), Line("Drop", "#0072B2")
FEDAVG = Line("FedAvg", "#000000", dashed=True)


def chart(*points, lines=(FEDAVG, SALF, DROP), x="x", **more):
    return Lines(points, lines, Axis(x), more.pop("y", Axis("y")), **more)


def marks(spec):
    return [layer["mark"]["type"] for layer in spec["layer"]]


def y_domain(spec):
    return spec["layer"][0]["encoding"]["y"]["scale"].get("domain")


def drawn(layer, records):
    """The records that a layer shows."""
    filters = [step["filter"] for step in layer.get("transform", [])]
    wanted = {"datum.level": True, "!datum.level": False}
    return [r["line"] for r in records if all(r["level"] is wanted[f] for f in filters)]


def test_without_intervals_there_is_no_band():
    assert marks(figure(chart(Point("SALF", 1, 0.5)))) == ["line", "point"]
    assert marks(figure(chart(Point("SALF", 1, 0.5, 0.4, 0.6)))) == ["area", "line", "point"]
    assert marks(figure(chart(Point("SALF", 1, 0.5, 0.4, 0.6), interval="bar")))[0] == "rule"


def test_a_level_has_no_dots_but_is_compared_with_its_reference():
    points = [Point("FedAvg", 1, 0.9, 0.8, 1.0, reference=0.95), Point("SALF", 1, 0.5, 0.4, 0.6)]
    spec = figure(chart(*points, interval="bar", reference="diamonds"))
    (records,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    bars, line, dots, diamonds = spec["layer"]
    assert drawn(bars, records) == drawn(dots, records) == ["SALF"]
    assert drawn(line, records) == drawn(diamonds, records) == ["FedAvg", "SALF"]


def test_points_that_are_not_joined_have_a_line_for_the_level_only():
    points = [Point("FedAvg", 1, 0.9), Point("Drop", 1, 0.5)]
    spec = figure(chart(*points, interval="bar", joined=False))
    (records,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    line, dots = spec["layer"]
    assert drawn(line, records) == ["FedAvg"]
    assert drawn(dots, records) == ["Drop"]


def test_an_axis_shows_all_numbers_with_some_room():
    points = [Point("SALF", 1, 0.5, 0.2, 0.99), Point("SALF", 2, 0.5, reference=0.1)]
    low, high = y_domain(figure(chart(*points)))
    assert 0 < low < 0.1
    assert 0.99 < high < 1.1
    assert y_domain(figure(chart(*points, y=Axis("y", domain=(0, 2))))) == [0, 2]
    assert y_domain(figure(chart(*points, y=Axis("y", log=True)))) is None


def test_charts_below_each_other_share_a_title_and_can_be_drawn():
    one = chart(Point("SALF", 1, 0.5, panel="left"), Point("SALF", 2, 0.6, panel="right"))
    svg = vl_convert.vegalite_to_svg(figure(one, one, title="Two", subtitle=["of them"]))
    assert svg.count(">Two<") == svg.count(">of them<") == 1
    assert svg.count(">left<") == 2


def test_nothing_to_draw_is_drawn():
    assert vl_convert.vegalite_to_svg(figure(chart(y=Axis("y"))))
