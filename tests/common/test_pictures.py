"""Pictures of lines in panels: what is drawn of which points."""

import xml.etree.ElementTree as ET

import pytest

from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.common.pictures import number, svg, ticks

SALF, DROP = Line("SALF", "#D55E00", bold=True), Line("Drop", "#0072B2")
FEDAVG = Line("FedAvg", "#000000", dashed=True)
ONE = Line("one", "#123456")


def drawn(*points, lines=(ONE,), x="x", **more):
    """The elements of a picture, as (name, attributes, text)."""
    chart = Lines(points, lines, Axis(x), more.pop("y", Axis("y")), **more)
    parts = ET.fromstring(svg(Figure([chart]))).iter()
    return [(part.tag.rpartition("}")[2], part.attrib, part.text) for part in parts]


def marks(parts, colour="#123456"):
    """What is drawn in the colour of a line, in order."""
    return [
        "band" if each.get("fill") == colour and name == "path" else name
        for name, each, _ in parts
        if colour in (each.get("fill"), each.get("stroke"))
    ]


def texts(parts):
    return [text for name, _, text in parts if name == "text"]


@pytest.mark.parametrize(
    ("points", "more", "wanted"),
    [
        ([Point("one", 1, 0.5), Point("one", 2, 0.5)], {}, ["path"]),
        ([Point("one", 1, 0.5)], {}, ["path", "circle"]),  # a line of one point cannot be seen
        ([Point("one", x, 0.5, 0.4, 0.6) for x in (1, 2)], {}, ["band", "path"]),
        ([Point("one", 1, 0.5, 0.4, 0.6)], {"interval": "bar"}, ["path", "path", "circle"]),
        (
            [Point("one", 1, 0.5, 0.4, 0.6)],
            {"interval": "bar", "joined": False},
            ["path", "circle"],
        ),
        (
            [Point("one", x, 0.5, reference=0.6) for x in (1, 2)],
            {"reference": "diamonds"},
            ["path"] * 3,
        ),
        (
            [Point("one", x, 0.5, reference=0.6) for x in (1, 2)],
            {"reference": "dashed"},
            ["path"] * 2,
        ),
        ([], {}, []),
    ],
)
def test_a_line_has_the_marks_of_what_its_points_have(points, more, wanted):
    assert marks(drawn(*points, **more)) == wanted


def test_a_level_has_a_line_and_no_dots():
    points = [Point("FedAvg", x, 0.9, 0.8, 1.0) for x in (1, 2)] + [Point("Drop", 1, 0.5, 0.4, 0.6)]
    found = drawn(*points, lines=(FEDAVG, DROP), interval="bar", joined=False)
    # One path of each is in the legend.
    assert marks(found, FEDAVG.colour) == ["path", "path"]
    assert marks(found, DROP.colour) == ["path", "path", "circle"]


def test_bold_lines_are_over_others_and_keep_their_place_in_the_legend():
    points = [Point(name, x, 0.5) for name in ("SALF", "Drop") for x in (1, 2)]
    found = drawn(*points, lines=(SALF, DROP))
    strokes = [each.get("stroke") for _, each, _ in found]
    both = [colour for colour in strokes if colour in (SALF.colour, DROP.colour)]
    assert both == [SALF.colour, DROP.colour, DROP.colour, SALF.colour]
    assert texts(found)[:2] == ["SALF", "Drop"]


def test_panels_have_headings_that_are_wrapped_and_scales_of_their_own_if_these_are_free():
    panel = "averaged over the users that reached a layer\n30 %"
    points = [Point("one", 1, 10 * k, panel=p) for k, p in enumerate([panel, "b", "c", "d"], 1)]
    shared = texts(drawn(*points))
    assert shared[:3] == ["averaged over the users", "that reached a layer", "30 %"]
    assert shared.count("20") == 4  # a tick of every panel
    assert texts(drawn(*points, y=Axis("y", free=True))).count("20") == 1


def test_charts_below_each_other_share_a_title_and_texts_are_escaped():
    axes, marks = (Axis("a < b"), Axis("y")), [(1, "here & now")]
    chart = Lines([Point("one", 1, 0.5)], [ONE], *axes, marks=marks)
    picture = svg(Figure([chart, chart], "Two", ["of them"]))
    assert picture.count(">Two<") == picture.count(">of them<") == 1
    assert picture.count("a &lt; b") == picture.count("here &amp; now") == 2
    assert picture._repr_svg_() == picture


@pytest.mark.parametrize(
    ("axis", "ends", "told"),
    [
        (Axis(""), (0, 1000), ["0", "200", "400", "600", "800", "1,000"]),
        (Axis(""), (0.113, 0.158), ["0.12", "0.13", "0.14", "0.15"]),
        (Axis("", log=True), (0.00003, 120), ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100"]),
        (Axis("", log=True), (3, 8), ["3", "4", "5", "6", "7", "8"]),
        (Axis("", log=True), (1.5, 8), ["2", "5"]),
        (Axis("", percent=True), (0, 0.5), ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %"]),
        (Axis("", seconds=True), (0, 2), ["0 s", "500 ms", "1 s", "1.5 s", "2 s"]),
        (Axis("", ticks=(1, 3, 9)), (2, 10), ["3", "9"]),
    ],
)
def test_numbers_at_an_axis_are_round(axis, ends, told):
    assert [number(axis, value) for value in ticks(axis, *ends, 6)] == told
