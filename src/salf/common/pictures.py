"""Pictures of line charts as SVG and PNG, for files and notebooks."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.util import find_spec
from math import ceil, floor, isfinite, log10
from pathlib import Path
from textwrap import wrap

from salf.common.figures import Axis, Figure, Line, Lines, Point

INK, SOFT, GRID = "#1b1f24", "#8a939c", "#e8ebee"
WIDTH, GAP = 880, 16  # of a picture and between its panels, in pixels
LEFT, RIGHT, BOTTOM = 54, 18, 44  # from the edges of a panel to its axes
LETTER = 6.4  # the width of one, roughly
XY = tuple[float, float]
Scale = Callable[[float], float]


class SVG(str):
    """A picture, which a notebook shows; as a text, it is the content of an .svg file."""

    def _repr_svg_(self) -> str:
        return str(self)


def pictures(figure: Figure, path: Path) -> dict[Path, str | bytes]:
    """The content of files with the lines of a figure: an SVG and, with `salf[report]`, a PNG."""
    drawn = svg(figure)
    made: dict[Path, str | bytes] = {Path(f"{path}.svg"): drawn}
    if find_spec("vl_convert") is not None:
        import vl_convert

        made[Path(f"{path}.png")] = vl_convert.svg_to_png(drawn, scale=2)
    return made


def svg(figure: Figure) -> SVG:
    """The lines of a figure, chart below chart."""
    parts, y = [], 4.0
    for words, size in [(figure.title, 15), *((each, 12) for each in figure.subtitle)]:
        for line in wrap(words, int(WIDTH / (0.52 * size))):
            y += size + 6
            parts.append(_text(8, y, line, font_size=size))
    for chart in figure.charts:
        if isinstance(chart, Lines):
            drawn, y = _chart(chart, y + 12)
            parts += drawn
    tall = round(y)
    paper = _tag("rect", width=WIDTH, height=tall, fill="white")
    head = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {tall}"}
    font = {"font_family": "Helvetica, Arial, sans-serif", "font_size": "12"}
    inside = "\n".join([paper, *parts])
    return SVG(_tag("svg", inside, width=WIDTH, height=tall, **head, **font))


def ticks(axis: Axis, low: float, high: float, count: int) -> list[float]:
    """The numbers that are written at an axis: about so many round ones, or powers of ten."""
    if axis.ticks:
        return [value for value in axis.ticks if low <= value <= high]
    if axis.log:
        return [10.0**p for p in range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)]
    raw = (high - low) / count or 1.0
    power = 10.0 ** floor(log10(raw))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= raw * (1 - 1e-9))
    return [k * step for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def number(axis: Axis, value: float) -> str:
    """A number at an axis."""
    if axis.percent:
        return f"{100 * value:.4g} %"
    if axis.seconds:
        return f"{1000 * value:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{float(f'{value:.4g}'):,}".removesuffix(".0")


def _chart(chart: Lines, y: float) -> tuple[list[str], float]:
    """The legend and the panels of a chart from y on, and where they end."""
    parts, x = [], 8.0
    for line in chart.lines if len(chart.lines) > 1 else ():
        wide = 36 + LETTER * len(line.name)
        if x > 8 and x + wide > WIDTH:
            x, y = 8.0, y + 18
        parts.append(_path([(x, y + 8), (x + 20, y + 8)], line.colour, 3, "5 3" * line.dashed))
        parts.append(_text(x + 25, y + 12, line.name))
        x += wide
    y += 26 if parts else 0
    panels: dict[str, list[Point]] = {} if chart.points else {"": []}
    for point in chart.points:
        panels.setdefault(point.panel, []).append(point)
    across = min(len(panels), chart.wrap or 1)
    wide = (WIDTH - GAP * (across - 1)) // across
    titles = {
        name: [line for part in name.split("\n") for line in wrap(part, int((wide - 60) / LETTER))]
        for name in panels
    }
    top = 22 + 16 * max(map(len, titles.values()))
    tall = top + chart.height + BOTTOM + 8
    for i, (name, points) in enumerate(panels.items()):
        drawn = [
            _text(LEFT, 14 + 16 * k, line, font_weight="bold")
            for k, line in enumerate(titles[name])
        ]
        drawn += _panel(chart, points, wide, top)
        place = f"translate({(wide + GAP) * (i % across)} {y + tall * (i // across):.1f})"
        parts.append(_tag("g", "\n".join(drawn), transform=place))
    return parts, y + tall * ceil(len(panels) / across)


def _panel(chart: Lines, points: Sequence[Point], wide: float, top: float) -> list[str]:
    """The axes of a panel and what is in it."""
    right, bottom = wide - RIGHT, top + chart.height
    across = _domain(chart.x, [p.x for p in (points if chart.x.free else chart.points)], 0.02)
    seen = points if chart.y.free else chart.points
    heights = [h for p in seen for h in (p.mean, p.low, p.high, p.reference) if h is not None]
    up = _domain(chart.y, heights, 0.04)
    x, y = _scale(chart.x, across, LEFT, right), _scale(chart.y, up, bottom, top)
    parts = [_text(LEFT, top - 9, chart.y.title)]
    for value in ticks(chart.y, *up, max(2, chart.height // 40)):
        parts.append(_path([(LEFT, y(value)), (right, y(value))], GRID, 1))
        parts.append(_text(LEFT - 6, y(value) + 4, number(chart.y, value), text_anchor="end"))
    last = 0.0  # where the last label ended: labels do not overlap
    for value in ticks(chart.x, *across, max(2, int((right - LEFT) / 75))):
        label = number(chart.x, value)
        if x(value) - LETTER / 2 * len(label) >= last:
            last = x(value) + LETTER / 2 * len(label) + 6
            parts.append(_path([(x(value), bottom), (x(value), bottom + 4)], SOFT, 1))
            parts.append(_text(x(value), bottom + 17, label, text_anchor="middle"))
    parts.append(_path([(LEFT, bottom), (right, bottom)], SOFT, 1))
    middle = (LEFT + right) / 2
    parts.append(_text(middle, bottom + 34, chart.x.title, text_anchor="middle"))
    if chart.level is not None:
        parts.append(_path([(LEFT, y(chart.level)), (right, y(chart.level))], INK, 1, "4 3"))
    for at, words in chart.marks:
        parts.append(_path([(x(at), top), (x(at), bottom)], INK, 1, "4 3"))
        parts.append(_text(x(at) + 5, top + 11, words))
    for line in sorted(chart.lines, key=lambda line: line.bold):  # bold ones over the others
        own = [p for p in points if p.line == line.name and (p.mean > 0 or not chart.y.log)]
        parts += _line(chart, line, own, x, y) if own else ()
    return parts


def _line(chart: Lines, line: Line, points: Sequence[Point], x: Scale, y: Scale) -> list[str]:
    """A line, its intervals and what it is compared with."""
    means, lows, highs, references = (
        [(x(p.x), y(value)) for p in points if (value := getattr(p, name)) is not None]
        for name in ("mean", "low", "high", "reference")
    )
    parts, bars = [], chart.interval == "bar" and not line.dashed
    if chart.interval == "band" and lows:
        parts.append(_path([*highs, *lows[::-1]], "none", fill=line.colour, opacity="0.14"))
    if chart.reference == "dashed":
        parts.append(_path(references, line.colour, dash="6 4"))
    if chart.joined or line.dashed:
        parts.append(_path(means, line.colour, 2.8 if line.bold else 1.7, "5 3" * line.dashed))
    if bars:
        parts += [_path(ends, line.colour) for ends in zip(lows, highs, strict=True)]
    if bars or len(points) == 1:
        parts += [_tag("circle", cx=cx, cy=cy, r=3.5, fill=line.colour) for cx, cy in means]
    for cx, cy in references if chart.reference == "diamonds" else ():
        corners = [(cx, cy - 6), (cx + 6, cy), (cx, cy + 6), (cx - 6, cy), (cx, cy - 6)]
        parts.append(_path(corners, line.colour))
    return parts


def _domain(axis: Axis, values: Sequence[float], room: float) -> XY:
    known = [value for value in values if isfinite(value) and (value > 0 or not axis.log)]
    if axis.domain is not None or not known:
        return axis.domain or ((1.0, 10.0) if axis.log else (0.0, 1.0))
    low, high = min(known), max(known)
    if axis.log:
        return (low, high) if low < high else (low / 2, high * 2)
    more = room * (high - low) or 0.01 + abs(low) / 100
    return low - more, high + more


def _scale(axis: Axis, domain: XY, begin: float, end: float) -> Scale:
    """From numbers of an axis to pixels; what is outside is at the edge."""

    def bent(value: float) -> float:
        return log10(max(value, 1e-300)) if axis.log else value

    low, high = map(bent, domain)
    return lambda value: (
        begin + (end - begin) * min(max((bent(value) - low) / (high - low or 1.0), 0.0), 1.0)
    )


def _path(
    points: Iterable[XY], colour: str, width: float = 1.7, dash: str = "", **more: str
) -> str:
    d = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    look = {"fill": "none", "stroke": colour, "stroke_width": str(width), **more}
    return _tag("path", d=d, **look, **({"stroke_dasharray": dash} if dash else {}))


def _text(x: float, y: float, words: str, **more: str | float) -> str:
    return _tag("text", escape(words), x=x, y=y, fill=INK, **more)


def _tag(name: str, inside: str = "", **attributes: str | float) -> str:
    given = "".join(
        f' {key.replace("_", "-")}="{f"{value:.1f}" if isinstance(value, float) else value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{inside}</{name}>"
