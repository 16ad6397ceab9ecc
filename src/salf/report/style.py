"""The house style of charts, and the parts that they share: axes, colours, panels, tooltips."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from salf.common.files import write_whole
from salf.report.extra import alt, vl_convert

Spec = dict[str, Any]
Records = list[dict[str, Any]]
T = TypeVar("T")

INK, SOFT, RUST = "#1b1f24", "#59636e", "#D55E00"
POINTS = 200  # of a curve, at most: more cannot be seen, and the page holds them all
_ORDERED = (
    "#332288", "#0072B2", "#56B4E9", "#009E73", "#A6A12B", "#E69F00", "#D55E00", "#882255",
)  # fmt: skip
_SHADES = ("#f6dccb", "#7fb3d3", "#00507d")  # from nothing, which is not white, to all
_STYLE = files("salf.report") / "style.json"  # its font is known to browsers and to the renderer
_TIME = (
    "datum.value > 0 && datum.value < 1 ? format(1000 * datum.value, '.3~r') + ' ms' "
    ": format(datum.value, ',.3~r') + ' s'"
)


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

    def options(self, values: Sequence[float] = (), padding: int = 0) -> dict[str, Any]:
        """Title, scale and ticks; with padding in pixels, or some room around the values."""
        scale: dict[str, Any] = {"type": "log"} if self.log else {"zero": False}
        if self.domain is not None:
            scale["domain"] = self.domain
        elif padding:
            scale["padding"] = padding
        elif values and not self.log and not self.free:
            low, high = min(values), max(values)
            room = 0.04 * (high - low) or 0.01
            scale["domain"] = [low - room, high + room]
        ticks: dict[str, Any] = {"values": list(self.ticks)} if self.ticks else {"tickCount": 6}
        if self.seconds:
            ticks["labelExpr"] = _TIME
        elif self.log:
            ticks["format"] = "~g"
        if self.percent:
            ticks["labelExpr"] = "format(100 * datum.value, '.3~g') + ' %'"
        scale = alt.Scale(nice=False, **scale)
        return {"title": self.title, "scale": scale, "axis": alt.Axis(**ticks)}


def thinned(curve: Sequence[T]) -> list[T]:
    """A curve with points left out evenly, where it has too many; the last one is always there."""
    every = -(-len(curve) // POINTS) or 1
    return list(curve[::-1][::every][::-1])


def of(records: Records, **size: Any) -> Any:
    """A chart of these records."""
    return alt.Chart(alt.InlineData(records), **size)


def tips(**shown: str | tuple[str, str]) -> list[Any]:
    """The tooltip: a title for each field, and a format too if it is a number."""
    return [
        alt.Tooltip(f"{field}:N", title=title)
        if isinstance(title, str)
        else alt.Tooltip(f"{field}:Q", title=title[0], format=title[1])
        for field, title in shown.items()
    ]


def named(field: str, order: Sequence[str], title: str | None = None, **axis: Any) -> Any:
    """The y axis of things with names, in this order."""
    axis = {"labelLimit": 220, **axis}
    return alt.Y(f"{field}:N", sort=list(order), title=title, axis=alt.Axis(**axis))


def ordered(count: int) -> list[str]:
    """Colours of things that have an order, such as layers."""
    last = len(_ORDERED) - 1
    return [_ORDERED[round(i * last / max(1, count - 1))] for i in range(count)]


def shaded(field: str, title: str) -> Any:
    """The colour of a number from 0 to 1. Nothing is not white: who got nowhere was asked."""
    look: dict[str, Any] = {"format": ".0%", "values": [0, 0.5, 1], "gradientLength": 180}
    return alt.Color(
        f"{field}:Q",
        scale=alt.Scale(domain=[0, 1], range=list(_SHADES), interpolate="lab"),
        legend=alt.Legend(title=title, titleFontWeight="normal", orient="top", **look),
    )


def spec(chart: Any, datasets: Mapping[str, Records] | None = None) -> Spec:
    """An Altair chart in the house style, as Vega-Lite, with the data that it has by name only."""
    # All at once: every call copies the whole chart.
    styled = chart.configure(**json.loads(_STYLE.read_text(encoding="utf-8")))
    found: Spec = json.loads(styled.to_json())
    if datasets:
        found["datasets"] = found.get("datasets", {}) | json.loads(json.dumps(datasets))
    # Nothing on a page should name a server, and what draws the chart is what the page brings.
    found.pop("$schema", None)
    return found


def pictures(chart: Spec, path: Path) -> dict[Path, str | bytes]:
    """The chart as PNG and SVG, by file: the path without a suffix and with one."""
    return {
        Path(f"{path}.png"): vl_convert.vegalite_to_png(chart, scale=2),
        Path(f"{path}.svg"): vl_convert.vegalite_to_svg(chart),
    }


def write(made: Mapping[Path, str | bytes]) -> list[Path]:
    """Write files that are all made already, so that an error leaves none behind."""
    for path, content in made.items():
        write_whole(path, content)
    return list(made)
