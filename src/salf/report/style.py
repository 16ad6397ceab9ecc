"""How all charts look, on a page and as pictures."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from salf.report.extra import optional

Spec = dict[str, Any]
T = TypeVar("T")

INK, SOFT = "#1b1f24", "#59636e"
POINTS = 200  # of a curve, at most: more cannot be seen, and the page holds them all
_FONT = "Helvetica, Arial, sans-serif"  # one that a browser and the pictures' renderer both know


def thinned(curve: Sequence[T]) -> list[T]:
    """A curve with points left out evenly, where it has too many; the last one is always there."""
    every = -(-len(curve) // POINTS) or 1
    return list(curve[::-1][::every][::-1])


def legend() -> Any:
    """Over the chart, where it takes no width from the panels."""
    return optional("altair").Legend(
        title=None, orient="top", columns=5, labelLimit=0, symbolType="stroke", symbolOpacity=1
    )


def spec(chart: Any) -> Spec:
    """An Altair chart in the house style, as Vega-Lite."""
    styled = (
        chart.configure(font=_FONT, background="white", padding=8)
        .configure_view(stroke=None)
        .configure_axis(
            labelFlush=False,
            labelFontSize=11,
            labelColor=INK,
            titleFontSize=12,
            titleFontWeight="normal",
            titleColor=INK,
            gridColor="#e8ebee",
            domainColor="#8a939c",
            tickColor="#8a939c",
        )
        .configure_title(fontSize=15, color=INK, subtitleFontSize=12, subtitleColor=SOFT)
        .configure_header(labelFontSize=12, labelColor=INK, labelFontWeight="bold", labelLimit=0)
        .configure_legend(labelFontSize=12, labelColor=INK, symbolStrokeWidth=3, symbolSize=220)
    )
    found: Spec = json.loads(styled.to_json())
    # Nothing on a page should name a server, and what draws the chart is what the page brings.
    found.pop("$schema", None)
    return found
