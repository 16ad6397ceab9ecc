"""Pictures of line charts as SVG and PNG, for files and notebooks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from math import ceil, floor, isfinite, log10
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from salf.common.figures import Axis, Figure, Lines

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH = 880  # in pixels
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
    charts = [each for each in figure.charts if isinstance(each, Lines)]
    titles = [(figure.title, 15), *((each, 12) for each in figure.subtitle)]
    return SVG(_template().render(charts=charts, titles=titles, **FUNCTIONS))


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader  # slow to import

    loader = PackageLoader("salf.common", "")
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.get_template("picture.svg")


def ticks(axis: Axis, low: float, high: float, count: int) -> list[float]:
    """The numbers that are written at an axis: about so many round ones, or powers of ten."""
    if axis.ticks:
        return [value for value in axis.ticks if low <= value <= high]
    for steps in ((1,), (1, 2, 5)) if axis.log else ():  # and below two of these, as without
        every = [
            k * 10.0**p for p in range(floor(log10(low)), ceil(log10(high)) + 1) for k in steps
        ]
        found = [value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) > 1:
            return found
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


def _path(points: Iterable[XY]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _numbers(panels: Iterable[Mapping[str, Sequence[Sequence[float | None]]]]) -> Any:
    """The numbers of points across, and those up."""
    points = [point for lines in panels for each in lines.values() for point in each]
    return [p[0] for p in points], [v for p in points for v in p[1:] if v is not None]


# Which the template calls.
FUNCTIONS = {"wrap": wrap, "d": _path, "W": WIDTH, "ticks": ticks, "number": number}
FUNCTIONS |= {"domain": _domain, "scale": _scale, "numbers": _numbers}
