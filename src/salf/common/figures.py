"""Figures as data: lines, bars, cells and lanes. Pages draw them; pictures.py draws lines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

T = TypeVar("T")

LINK, LOST = 0, -1  # what a piece of a lane is, in place of a layer's number
POINTS = 200  # of a curve, at most: more cannot be seen, and the page holds them all
_ORDERED = (
    "#332288", "#0072B2", "#56B4E9", "#009E73", "#A6A12B", "#E69F00", "#D55E00", "#882255",
)  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """An axis of numbers. It shows the data, or its `domain`."""

    title: str
    log: bool = False
    percent: bool = False
    seconds: bool = False
    ticks: Sequence[float] = ()
    domain: tuple[float, float] | None = None
    free: bool = False  # every panel has its own scale


@dataclass(frozen=True)
class Line:
    """A line of a chart, or its bars. A dashed one is a level to compare the others with."""

    name: str
    colour: str
    dashed: bool = False
    bold: bool = False


@dataclass(frozen=True)
class Point:
    """A mean, the ends of its interval, and a number to compare it with, in a panel of a chart."""

    line: str
    x: float
    mean: float
    low: float | None = None
    high: float | None = None
    reference: float | None = None
    panel: str = ""


@dataclass(frozen=True)
class Lines:
    """Points joined by lines, in panels.

    Intervals are a band around the line, or a bar through each dot. `reference` says how the
    numbers to compare with are drawn; `level` is one that all lines are compared with.
    """

    points: Sequence[Point]
    lines: Sequence[Line]
    x: Axis
    y: Axis
    interval: Literal["band", "bar"] = "band"
    joined: bool = True
    reference: Literal["diamonds", "dashed", ""] = ""
    level: float | None = None
    marks: Sequence[tuple[float, str]] = ()  # vertical lines at x, with their labels
    height: int = 220
    wrap: int = 4  # so many panels side by side at most, and then the next row

    def panels(self) -> dict[str, dict[str, list[list[float | None]]]]:
        """The points of each line in each panel, as lists: a page holds thousands of them."""
        panels: dict[str, dict[str, list[list[float | None]]]] = {}
        for p in self.points:
            point = [p.x, p.mean, p.low, p.high, p.reference]
            while point[-1] is None:
                point.pop()
            panels.setdefault(p.panel, {}).setdefault(p.line, []).append(point)
        return panels


@dataclass(frozen=True)
class Bars:
    """A value per group and line, side by side or stacked; `marks` are values to compare with."""

    groups: Sequence[str]
    lines: Sequence[Line]
    values: Sequence[Sequence[float]]  # by line
    y: Axis
    marks: Sequence[float] = ()
    stacked: bool = False
    title: str = ""  # of the groups


@dataclass(frozen=True)
class Cells:
    """A part, from 0 to 1, for every row and column; None where there is nothing."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]  # by row
    value: str  # what it is
    x: str
    y: str = ""


@dataclass(frozen=True)
class Lanes:
    """What users did in a few rounds: for each, pieces of (begin, end, place of the kind).

    A round has `round`, `seconds`, `deadline`, `users` and their `pieces`.
    """

    title: str
    kinds: Sequence[Line]  # LOST is the last one
    rounds: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Voices:
    """The part that users and classes have in the steps of some methods, beside their data."""

    lines: Sequence[Line]
    users: Mapping[str, Sequence[float]]  # by line, the least heard first, in equal parts
    classes: Mapping[str, Sequence[float]]
    data: Sequence[float]


@dataclass(frozen=True)
class Figure:
    """Charts below each other, with a title over them."""

    charts: Sequence[Lines | Bars | Cells | Lanes | Voices]
    title: str = ""
    subtitle: Sequence[str] = ()

    def data(self) -> dict[str, Any]:
        """The figure for a page."""
        charts = []
        for each in self.charts:
            # Points are not copied one by one, only to be put in panels.
            bare = replace(each, points=()) if isinstance(each, Lines) else each
            points = {"points": each.panels()} if isinstance(each, Lines) else {}
            charts.append({"kind": type(each).__name__, **asdict(bare), **points})
        return {"charts": charts, "title": self.title, "subtitle": list(self.subtitle)}


def thinned(curve: Sequence[T]) -> list[T]:
    """A curve with points left out evenly, where it has too many; the last one is always there."""
    every = -(-len(curve) // POINTS) or 1
    return list(curve[::-1][::every][::-1])


def ordered(count: int) -> list[str]:
    """Colours of things that have an order, such as layers."""
    last = len(_ORDERED) - 1
    return [_ORDERED[round(i * last / max(1, count - 1))] for i in range(count)]
