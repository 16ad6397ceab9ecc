"""Pictures of figures, as PNG and SVG, drawn by Vega-Lite: charts of lines, below each other."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import Any

from salf.common.files import write_whole
from salf.common.notebook import REPORT, package
from salf.report.figures import Axis, Figure, Lines, Records

Spec = dict[str, Any]

INK = "#1b1f24"
_WIDTH, _GAP = 880, 30  # of panels, in pixels
_STYLE = files("salf.report") / "style.json"  # its font is known to browsers and to the renderer
_TIME = (
    "datum.value > 0 && datum.value < 1 ? format(1000 * datum.value, '.3~r') + ' ms' "
    ": format(datum.value, ',.3~r') + ' s'"
)


def check_extra() -> None:
    """Fail now, rather than after hours of training, if pictures could not be drawn."""
    for name in ("altair", "vl_convert"):
        package(name, REPORT)


def pictures(figure: Figure | Spec, path: Path) -> dict[Path, str | bytes]:
    """The figure as PNG and SVG, by file: the path without a suffix and with one."""
    drawn = spec_of(figure) if isinstance(figure, Figure) else figure
    convert = package("vl_convert", REPORT)
    return {
        Path(f"{path}.png"): convert.vegalite_to_png(drawn, scale=2),
        Path(f"{path}.svg"): convert.vegalite_to_svg(drawn),
    }


def write(made: Mapping[Path, str | bytes]) -> list[Path]:
    """Write files that are all made already, so that an error leaves none behind."""
    for path, content in made.items():
        write_whole(path, content)
    return list(made)


def spec_of(figure: Figure) -> Spec:
    """The lines of a figure as Vega-Lite."""
    alt = package("altair", REPORT)
    # Altair checks the data and copies them at every step, so it gets their name only.
    lines = {f"points-{i}": c for i, c in enumerate(figure.charts) if isinstance(c, Lines)}
    charts = [_drawn(chart, name) for name, chart in lines.items()]
    whole = alt.vconcat(*charts, spacing=24) if charts[1:] else charts[0]
    if figure.title:
        subtitle = list(figure.subtitle)
        whole = whole.properties(
            title=alt.Title(figure.title, subtitle=subtitle, anchor="start", offset=12)
        )
    return spec(whole, {name: _records(chart) for name, chart in lines.items()})


def spec(chart: Any, datasets: Mapping[str, Records]) -> Spec:
    """An Altair chart in the house style, as Vega-Lite, with the data that it has by name only."""
    # All at once: every call copies the whole chart.
    styled = chart.configure(**json.loads(_STYLE.read_text(encoding="utf-8")))
    found: Spec = json.loads(styled.to_json())
    found["datasets"] = found.get("datasets", {}) | json.loads(json.dumps(datasets))
    return found


def _drawn(chart: Lines, data: str) -> Any:
    """The layers of a chart in its panels, with its data by name."""
    alt = package("altair", REPORT)
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
        x=alt.X("x:Q", **_options(chart.x, padding=12)),
        color=alt.Color("line:N", scale=colours, legend=look),
    )
    heights = [v for p in points for v in (p.mean, p.low, p.high, p.reference) if v is not None]
    y = _options(chart.y, heights)

    line = base.mark_line(strokeJoin="round").encode(
        y=alt.Y("mean:Q", **y),
        strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=look),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None),
    )
    if not chart.joined:
        line = line.transform_filter("datum.level")
    dots = chart.interval == "bar"
    reference = base.encode(y=alt.Y("reference:Q", **y))
    if dots:
        base = base.transform_filter("!datum.level")
    interval = (base.mark_rule(strokeWidth=1.5) if dots else base.mark_area()).encode(
        y=alt.Y("low:Q", **y), y2="high:Q", opacity=alt.value(0.6 if dots else 0.12)
    )
    layers = [line]
    if dots:
        layers.append(base.mark_point(filled=True, size=50).encode(y=alt.Y("mean:Q", **y)))
    if any(point.low is not None for point in points):
        layers.insert(0, interval)
    if chart.reference == "diamonds":
        layers.append(reference.mark_point(shape="diamond", size=70, strokeWidth=1.6))
    elif chart.reference:
        layers.insert(0, reference.mark_line(strokeWidth=1.6, strokeDash=[6, 4]))
    for x, label in chart.marks:
        at = alt.Chart(alt.InlineData([{"x": x, "label": label}])).encode(x="x:Q")
        text = at.mark_text(align="left", dx=5, dy=8, y=0, fontSize=11, color=INK)
        rule = at.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.5)
        layers += [rule, text.encode(text="label:N")]
    if chart.level is not None:
        level = alt.Chart(alt.InlineData([{"y": chart.level}]))
        layers.append(level.mark_rule(strokeDash=[4, 4], color=INK).encode(y="y:Q"))
    found = _faceted(chart, alt.layer(*layers))
    free = {name: "independent" for name in ("x", "y") if getattr(chart, name).free}
    return found.resolve_scale(**free) if free else found


def _faceted(chart: Lines, layers: Any) -> Any:
    """The layers once per panel."""
    panels = list(dict.fromkeys(_heading(point.panel) for point in chart.points))
    across = min(len(panels), chart.wrap) or 1
    width = min(chart.widest, _WIDTH // across - _GAP)
    sized = layers.properties(width=width, height=chart.height)
    if not any(panels):
        return sized
    alt = package("altair", REPORT)
    header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
    facet = alt.Facet("panel:N", sort=panels, header=header, title=None)
    return sized.facet(facet=facet, columns=across, spacing=32)


def _heading(panel: str) -> str:
    return "\n".join(line for part in panel.split("\n") for line in wrap(part, 30))


def _records(chart: Lines) -> Records:
    lines = {line.name: line for line in chart.lines}
    return [
        {
            **{key: value for key, value in asdict(point).items() if value is not None},
            "panel": _heading(point.panel),
            "level": lines[point.line].dashed,
            "width": 2.8 if lines[point.line].bold else 1.6,
        }
        # Bold lines are drawn last, over the others.
        for point in sorted(chart.points, key=lambda point: lines[point.line].bold)
    ]


def _options(axis: Axis, values: Sequence[float] = (), padding: int = 0) -> dict[str, Any]:
    """Title, scale and ticks; with padding in pixels, or some room around the values."""
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": False}
    if axis.domain is not None:
        scale["domain"] = axis.domain
    elif padding:
        scale["padding"] = padding
    elif values and not axis.log and not axis.free:
        low, high = min(values), max(values)
        room = 0.04 * (high - low) or 0.01
        scale["domain"] = [low - room, high + room]
    alt = package("altair", REPORT)
    ticks: dict[str, Any] = {"values": list(axis.ticks)} if axis.ticks else {"tickCount": 6}
    if axis.seconds:
        ticks["labelExpr"] = _TIME
    elif axis.log:
        ticks["format"] = "~g"
    if axis.percent:
        ticks["labelExpr"] = "format(100 * datum.value, '.3~g') + ' %'"
    return {
        "title": axis.title,
        "scale": alt.Scale(nice=False, **scale),
        "axis": alt.Axis(**ticks),
    }
