"""Lines in panels: means with their intervals, and numbers to compare them with."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

from salf.report import names
from salf.report.extra import optional
from salf.report.style import Records, Spec, faceted, legend, spec


@dataclass(frozen=True)
class Line:
    """A line of a chart. A dashed one is a level to compare the others with."""

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
    column: str = ""
    row: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis. It shows the data, but nothing beyond `limits`; or its `domain`, if it has one."""

    title: str
    log: bool = False
    percent: bool = False
    ticks: Sequence[float] = ()
    domain: tuple[float, float] | None = None
    limits: tuple[float, float] = (-inf, inf)
    free: bool = False  # every panel has its own scale


@dataclass(frozen=True)
class Lines:
    """Points joined by lines, in panels by column and row.

    Intervals are a band around the line, or a bar through each dot. `reference` says how the
    numbers to compare with are drawn.
    """

    points: Sequence[Point]
    lines: Sequence[Line]
    x: Axis
    y: Axis
    interval: Literal["band", "bar"] = "band"
    joined: bool = True
    reference: Literal["diamonds", "dashed", "solid", ""] = ""
    height: int = 220
    widest: int = 560  # of one panel


def figure(*charts: Lines, title: str = "", subtitle: Sequence[str] = ()) -> Spec:
    """Charts below each other. With a title they can be read without the page around them."""
    alt = optional("altair")
    chosen = alt.selection_point(fields=["line"], bind="legend")

    def opacity(value: float) -> Any:
        return alt.when(chosen).then(alt.value(value)).otherwise(alt.value(value / 8))

    # Altair checks the data and copies them at every step, so it gets their name only.
    datasets = {f"points-{number}": _records(chart) for number, chart in enumerate(charts, 1)}
    drawn = [_drawn(chart, data, opacity) for data, chart in zip(datasets, charts, strict=True)]
    drawn[0] = drawn[0].add_params(chosen)
    whole = drawn[0] if len(drawn) == 1 else alt.vconcat(*drawn)
    if title:
        heading = alt.Title(title, subtitle=list(subtitle), anchor="start", offset=12)
        whole = whole.properties(title=heading)
    return spec(whole, datasets)


def method_lines(methods: Sequence[str]) -> list[Line]:
    """One line per method: FedAvg, which waits, dashed, and SALF bold."""
    return [
        Line(names.method(method), colour, names.waits(method), method == "salf")
        for method, colour in zip(methods, names.colours(methods), strict=True)
    ]


def _drawn(chart: Lines, data: str, opacity: Callable[[float], Any]) -> Any:
    """The layers of a chart in its panels, with its data by name."""
    alt = optional("altair")
    points, shown = chart.points, [line.name for line in chart.lines]
    colours = alt.Scale(domain=shown, range=[line.colour for line in chart.lines])
    dashes = alt.Scale(
        domain=shown, range=[[5, 3] if line.dashed else [1, 0] for line in chart.lines]
    )
    # In one row, if that is not too long.
    look = legend(columns=len(shown) if sum(map(len, shown)) < 70 else 4)
    base = alt.Chart(alt.NamedData(data)).encode(
        x=alt.X("x:Q", **_options(chart.x, [], padding=12)),
        color=alt.Color("line:N", scale=colours, legend=look),
    )
    heights = [v for p in points for v in (p.mean, p.low, p.high, p.reference) if v is not None]
    y = _options(chart.y, heights)

    line = base.mark_line(strokeJoin="round").encode(
        y=alt.Y("mean:Q", **y),
        strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=look),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None),
        opacity=opacity(1),
    )
    if not chart.joined:
        line = line.transform_filter("datum.level")
    dots = chart.interval == "bar"
    reference = base.encode(y=alt.Y("reference:Q", **y), opacity=opacity(1))
    if dots:
        base = base.transform_filter("!datum.level")
    interval = (base.mark_rule(strokeWidth=1.5) if dots else base.mark_area()).encode(
        y=alt.Y("low:Q", **y), y2="high:Q", opacity=opacity(0.6 if dots else 0.12)
    )
    # Where the line shows the points, invisible ones are there for the tooltip.
    marks = base.mark_point(filled=True, size=50).encode(
        y=alt.Y("mean:Q", **y),
        opacity=opacity(1) if dots else alt.value(0),
        tooltip=_tooltip(chart),
    )
    layers = [line, marks]
    if any(point.low is not None for point in points):
        layers.insert(0, interval)
    if chart.reference:
        if chart.reference == "diamonds":
            layers.append(reference.mark_point(shape="diamond", size=70, strokeWidth=1.6))
        else:
            dash = [6, 4] if chart.reference == "dashed" else [1, 0]
            layers.insert(0, reference.mark_line(strokeWidth=1.6, strokeDash=dash))
    columns, rows = ([getattr(point, side) for point in points] for side in ("column", "row"))
    found = faceted(alt.layer(*layers), columns, rows, chart.height, chart.widest)
    free = {name: "independent" for name in ("x", "y") if getattr(chart, name).free}
    return found.resolve_scale(**free) if free else found


def _records(chart: Lines) -> Records:
    lines = {line.name: line for line in chart.lines}
    return [
        {
            **{key: value for key, value in asdict(point).items() if value is not None},
            "level": lines[point.line].dashed,
            "width": 2.8 if lines[point.line].bold else 1.6,
        }
        # Bold lines are drawn last, over the others.
        for point in sorted(chart.points, key=lambda point: lines[point.line].bold)
    ]


def _options(axis: Axis, values: Sequence[float], padding: int = 0) -> dict[str, Any]:
    """Title, scale and ticks of an axis; x has padding, y some room around the data."""
    alt = optional("altair")
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": False}
    if axis.domain is not None:
        scale["domain"] = axis.domain
    elif padding:
        scale["padding"] = padding
    elif values and not axis.log and not axis.free:
        (least, most), (low, high) = axis.limits, (min(values), max(values))
        room = 0.04 * (high - low) or 0.01
        scale["domain"] = [max(low - room, least), min(high + room, most)]
    ticks: dict[str, Any] = {"values": list(axis.ticks)} if axis.ticks else {"tickCount": 6}
    if axis.log:
        ticks["format"] = "~g"
    if axis.percent:
        ticks["labelExpr"] = "format(100 * datum.value, '.3~g') + ' %'"
    return {"title": axis.title, "scale": alt.Scale(nice=False, **scale), "axis": alt.Axis(**ticks)}


def _tooltip(chart: Lines) -> list[Any]:
    alt = optional("altair")
    percent = {"format": ".3~%"} if chart.x.percent else {}
    numbers = ["mean", "low", "high"] if any(p.low is not None for p in chart.points) else ["mean"]
    return [
        alt.Tooltip("line:N", title="Line"),
        alt.Tooltip("x:Q", title=chart.x.title, **percent),
        *(
            alt.Tooltip(f"{name}:Q", title=name.capitalize(), format=".4~g")
            for name in [*numbers, *(["reference"] if chart.reference else [])]
        ),
    ]
