"""The style of all charts, on a page and as pictures."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from salf.report.extra import optional

Spec = dict[str, Any]
Records = list[dict[str, Any]]
T = TypeVar("T")

INK, SOFT = "#1b1f24", "#59636e"
POINTS = 200  # of a curve, at most: more cannot be seen, and the page holds them all
# Of panels, in pixels.
_WIDTH, _GAP, _ROW_HEADING = 880, 30, 40
_ORDERED = (
    "#332288", "#0072B2", "#56B4E9", "#009E73", "#A6A12B", "#E69F00", "#D55E00", "#882255",
)  # fmt: skip
SHADES = ("#f6dccb", "#7fb3d3", "#00507d")  # from nothing, which is not white, to all
_FONT = "Helvetica, Arial, sans-serif"  # one that a browser and the pictures' renderer both know


def thinned(curve: Sequence[T]) -> list[T]:
    """A curve with points left out evenly, where it has too many; the last one is always there."""
    every = -(-len(curve) // POINTS) or 1
    return list(curve[::-1][::every][::-1])


def legend(columns: int = 5) -> Any:
    """Over the chart, where it takes no width from the panels."""
    return optional("altair").Legend(
        title=None,
        orient="top",
        columns=columns,
        labelLimit=0,
        symbolType="stroke",
        symbolOpacity=1,
    )


def faceted(
    chart: Any,
    columns: Sequence[str],
    rows: Sequence[str],
    height: int | None = None,
    widest: int = 560,
) -> Any:
    """The chart once per panel, by the fields `column` and `row` of its records.

    `columns` and `rows` are the headings, repeated or not; all empty, there is one. Without a
    height, each row of the chart takes what it needs.
    """
    alt = optional("altair")
    header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
    columns, rows = list(dict.fromkeys(columns)), list(dict.fromkeys(rows))
    facets = {}
    if any(columns):
        facets["column"] = alt.Column("column:N", sort=columns, header=header)
    if any(rows):
        facets["row"] = alt.Row("row:N", sort=rows, header=header)
    room = _WIDTH - _ROW_HEADING * any(rows)
    width = min(widest, room // max(1, len(columns)) - _GAP)
    sized = chart.properties(width=width, **({"height": height} if height else {}))
    return sized.facet(**facets) if facets else sized


def seconds_axis(last: float) -> Any:
    """An axis of times up to `last`, in ms where they are short."""
    alt = optional("altair")
    if last < 1:
        return alt.Axis(labelExpr="format(1000 * datum.value, '.3~g') + ' ms'", tickCount=8)
    return alt.Axis(labelExpr="format(datum.value, ',.3~r') + ' s'", tickCount=8)


def ordered(count: int) -> list[str]:
    """Colours of things that have an order, such as layers."""
    last = len(_ORDERED) - 1
    return [_ORDERED[round(i * last / max(1, count - 1))] for i in range(count)]


def shaded(field: str, title: str) -> Any:
    """The colour of a share from 0 to 1. Nothing is not white: who got nowhere was asked."""
    alt = optional("altair")
    return alt.Color(
        f"{field}:Q",
        scale=alt.Scale(domain=[0, 1], range=list(SHADES), interpolate="lab"),
        legend=alt.Legend(
            title=title,
            titleFontWeight="normal",
            orient="top",
            format=".0%",
            values=[0, 0.5, 1],
            gradientLength=180,
            gradientThickness=10,
        ),
    )


def spec(chart: Any, datasets: Mapping[str, Records] | None = None) -> Spec:
    """An Altair chart in the house style, as Vega-Lite, with the data that it has by name only."""
    # All at once: every call copies the whole chart.
    styled = chart.configure(
        font=_FONT,
        background="white",
        padding=8,
        view={"stroke": None},
        axis={
            "labelFlush": False,
            "labelFontSize": 11,
            "labelColor": INK,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titleColor": INK,
            "gridColor": "#e8ebee",
            "domainColor": "#8a939c",
            "tickColor": "#8a939c",
        },
        title={"fontSize": 15, "color": INK, "subtitleFontSize": 12, "subtitleColor": SOFT},
        header={"labelFontSize": 12, "labelColor": INK, "labelFontWeight": "bold", "labelLimit": 0},
        legend={"labelFontSize": 12, "labelColor": INK, "symbolStrokeWidth": 3, "symbolSize": 220},
    )
    found: Spec = json.loads(styled.to_json())
    if datasets is not None:
        found["datasets"] = json.loads(json.dumps(datasets))
    # Nothing on a page should name a server, and what draws the chart is what the page brings.
    found.pop("$schema", None)
    return found


def pictures(chart: Spec) -> dict[str, str | bytes]:
    """The chart as files, by suffix."""
    vl_convert = optional("vl_convert")
    return {
        "png": vl_convert.vegalite_to_png(chart, scale=2),
        "svg": vl_convert.vegalite_to_svg(chart),
    }
