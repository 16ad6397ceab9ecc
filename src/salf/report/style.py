"""How all charts look, on a page and as pictures."""

import json
from typing import Any

from salf.report.extra import optional

Spec = dict[str, Any]

INK, SOFT = "#1b1f24", "#59636e"
_FONT = "Helvetica, Arial, sans-serif"  # one that a browser and the pictures' renderer both know


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
