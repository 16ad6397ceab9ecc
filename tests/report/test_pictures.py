"""Pictures of lines in panels: what is drawn of which points."""

import vl_convert

from salf.report.figures import Axis, Line, Lines, Point, figure
from salf.report.pictures import spec_of

SALF, DROP = Line("SALF", "#D55E00", bold=True), Line("Drop", "#0072B2")
FEDAVG = Line("FedAvg", "#000000", dashed=True)


def chart(*points, lines=(FEDAVG, SALF, DROP), x="x", **more):
    return Lines(points, lines, Axis(x), more.pop("y", Axis("y")), **more)


def spec(*points, **more):
    return spec_of(figure(chart(*points, **more)))


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
    assert marks(spec(Point("SALF", 1, 0.5))) == ["line"]
    assert marks(spec(Point("SALF", 1, 0.5, 0.4, 0.6))) == ["area", "line"]
    assert marks(spec(Point("SALF", 1, 0.5, 0.4, 0.6), interval="bar")) == ["rule", "line", "point"]


def test_a_level_has_no_dots_but_is_compared_with_its_reference():
    points = [Point("FedAvg", 1, 0.9, 0.8, 1.0, reference=0.95), Point("SALF", 1, 0.5, 0.4, 0.6)]
    found = spec(*points, interval="bar", reference="diamonds")
    (records,) = found["datasets"].values()
    bars, line, dots, diamonds = found["layer"]
    assert drawn(bars, records) == drawn(dots, records) == ["SALF"]
    assert drawn(line, records) == drawn(diamonds, records) == ["FedAvg", "SALF"]


def test_points_that_are_not_joined_have_a_line_for_the_level_only():
    points = [Point("FedAvg", 1, 0.9), Point("Drop", 1, 0.5)]
    found = spec(*points, interval="bar", joined=False)
    (records,) = found["datasets"].values()
    line, dots = found["layer"]
    assert drawn(line, records) == ["FedAvg"]
    assert drawn(dots, records) == ["Drop"]


def test_an_axis_shows_all_numbers_with_some_room():
    points = [Point("SALF", 1, 0.5, 0.2, 0.99), Point("SALF", 2, 0.5, reference=0.1)]
    low, high = y_domain(spec(*points))
    assert 0 < low < 0.1
    assert 0.99 < high < 1.1
    assert y_domain(spec(*points, y=Axis("y", domain=(0, 2)))) == [0, 2]
    assert y_domain(spec(*points, y=Axis("y", log=True))) is None


def test_bold_lines_are_drawn_last_and_keep_their_place_in_the_legend():
    found = spec(Point("SALF", 1, 0.5), Point("Drop", 1, 0.4), lines=(SALF, DROP))
    (records,) = found["datasets"].values()
    assert [record["line"] for record in records] == ["Drop", "SALF"]
    assert found["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["SALF", "Drop"]


def test_charts_below_each_other_share_a_title_and_can_be_drawn():
    one = chart(Point("SALF", 1, 0.5, panel="left"), Point("SALF", 2, 0.6, panel="right"))
    two = figure(one, one, title="Two", subtitle=["of them"])
    svg = vl_convert.vegalite_to_svg(spec_of(two))
    assert svg.count(">Two<") == svg.count(">of them<") == 1
    assert svg.count(">left<") == 2


def test_long_headings_of_panels_are_wrapped():
    panel = "averaged over the users that reached a layer\n30 %"
    found = spec(Point("SALF", 1, 0.5, panel=panel), Point("SALF", 1, 0.5, panel="b"))
    assert found["facet"]["sort"][0] == "averaged over the users that\nreached a layer\n30 %"


def test_nothing_to_draw_is_drawn():
    assert vl_convert.vegalite_to_svg(spec(y=Axis("y")))
