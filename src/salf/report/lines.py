"""Lines in panels: means with their intervals, and numbers to compare them with."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from salf.report import names
from salf.report.extra import alt
from salf.report.style import INK, Axis, Records, Spec, of, spec

_WIDTH, _GAP = 880, 30  # of panels, in pixels


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
    widest: int = 560  # of one panel
    wrap: int = 4  # so many panels side by side, and then the next row


def figure(*charts: Any, title: str = "", subtitle: Sequence[str] = ()) -> Spec:
    """Lines below each other, or beside what Altair draws otherwise."""
    chosen = alt.selection_point(fields=["line"], bind="legend")

    def opacity(value: float) -> Any:
        return alt.when(chosen).then(alt.value(value)).otherwise(alt.value(value / 8))

    # Altair checks the data and copies them at every step, so it gets their name only.
    lines = {f"points-{i}": each for i, each in enumerate(charts) if isinstance(each, Lines)}
    datasets = {name: _records(chart) for name, chart in lines.items()}
    drawn = [each for each in charts if not isinstance(each, Lines)]
    own = bool(drawn)  # charts of several kinds, which share no colours
    for i, (name, chart) in enumerate(lines.items()):
        made = _drawn(chart, name, opacity)
        drawn.append(made if i else made.add_params(chosen))
    whole = drawn[0]
    if len(drawn) > 1:
        whole = alt.hconcat(*drawn, spacing=40) if own else alt.vconcat(*drawn, spacing=24)
    if title:
        heading = alt.Title(title, subtitle=list(subtitle), anchor="start", offset=12)
        whole = whole.properties(title=heading)
    if own:
        whole = whole.resolve_scale(color="independent", strokeDash="independent")
    return spec(whole, datasets)


def method_lines(methods: Sequence[str]) -> list[Line]:
    """One line per method: FedAvg, which waits, dashed, and SALF bold."""
    return [
        Line(names.method(method), colour, names.waits(method), method == "salf")
        for method, colour in zip(methods, names.colours(methods), strict=True)
    ]


def _drawn(chart: Lines, data: str, opacity: Callable[[float], Any]) -> Any:
    """The layers of a chart in its panels, with its data by name."""
    points, shown = chart.points, [line.name for line in chart.lines]
    colours = alt.Scale(domain=shown, range=[line.colour for line in chart.lines])
    dashes = alt.Scale(
        domain=shown, range=[[5, 3] if line.dashed else [1, 0] for line in chart.lines]
    )
    # In one row, if that is not too long; over the chart, where it takes no width from panels.
    columns = len(shown) if sum(map(len, shown)) < 70 else 4
    style = {"symbolType": "stroke", "symbolOpacity": 1, "labelLimit": 0, "columns": columns}
    look = alt.Legend(title=None, orient="top", **style) if shown[1:] else None
    base = alt.Chart(alt.NamedData(data)).encode(
        x=alt.X("x:Q", **chart.x.options(padding=12)),
        color=alt.Color("line:N", scale=colours, legend=look),
    )
    heights = [v for p in points for v in (p.mean, p.low, p.high, p.reference) if v is not None]
    y = chart.y.options(heights)

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
            layers.insert(0, reference.mark_line(strokeWidth=1.6, strokeDash=[6, 4]))
    for x, label in chart.marks:
        at = of([{"x": x, "label": label}]).encode(x="x:Q")
        text = at.mark_text(align="left", dx=5, dy=8, y=0, fontSize=11, color=INK)
        rule = at.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.5)
        layers += [rule, text.encode(text="label:N")]
    if chart.level is not None:
        level = of([{"y": chart.level}]).mark_rule(strokeDash=[4, 4], color=INK)
        layers.append(level.encode(y="y:Q"))
    found = _faceted(chart, alt.layer(*layers))
    free = {name: "independent" for name in ("x", "y") if getattr(chart, name).free}
    return found.resolve_scale(**free) if free else found


def _faceted(chart: Lines, layers: Any) -> Any:
    """The layers once per panel."""
    panels = list(dict.fromkeys(point.panel for point in chart.points))
    across = min(len(panels), chart.wrap) or 1
    width = min(chart.widest, _WIDTH // across - _GAP)
    sized = layers.properties(width=width, height=chart.height)
    if not any(panels):
        return sized
    header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
    facet = alt.Facet("panel:N", sort=panels, header=header, title=None)
    return sized.facet(facet=facet, columns=across, spacing=32)


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


def _tooltip(chart: Lines) -> list[Any]:
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
