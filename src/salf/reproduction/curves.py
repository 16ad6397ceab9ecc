"""Training runs as curves: over the rounds, in numbers, and as charts in panels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from salf.experiments.config import Config
from salf.report import names
from salf.report.extra import optional
from salf.report.style import Spec, legend, spec, thinned
from salf.reproduction.item import Found, label
from salf.reproduction.statistics import Interval, interval

_WIDTH = 880  # of all columns of panels together
_ROW_HEADING = 40
_GAP = 30
_WIDEST = 560


@dataclass(frozen=True)
class Course:
    """How one training went."""

    points: Sequence[tuple[int, float]]  # (round, accuracy on held-out data)
    losses: Sequence[float] = ()  # of every round, on the batches trained on

    @property
    def profile(self) -> float:
        """The mean accuracy over the evaluated rounds: the area under the curve."""
        return fmean(accuracy for _, accuracy in self.points)

    @property
    def end(self) -> float:
        """The last accuracy."""
        return self.points[-1][1]

    @property
    def best(self) -> float:
        """The highest accuracy."""
        return max(accuracy for _, accuracy in self.points)


def courses(found: Found, configs: Sequence[Config]) -> list[Course] | None:
    """How the runs of some seeds went, or None unless all came to their end."""
    runs = [found.run(config) for config in configs]
    ended = [run.history for run in runs if run is not None and run.history.curve]
    if len(ended) < len(configs):
        return None
    return [Course(each.curve, [row.train_loss for row in each.rows]) for each in ended]


def profiles(seeds: Sequence[Course] | None) -> list[float] | None:
    """The mean accuracy over the rounds, seed by seed."""
    return None if seeds is None else [course.profile for course in seeds]


def ends(seeds: Sequence[Course] | None) -> list[float] | None:
    """The accuracy at the end, seed by seed."""
    return None if seeds is None else [course.end for course in seeds]


def mean_curve(seeds: Sequence[Course]) -> list[tuple[int, Interval]]:
    """(round, mean over the seeds); of a long curve, points at equal distances."""
    return thinned(
        [
            (points[0][0], interval([accuracy for _, accuracy in points]))
            for points in zip(*(course.points for course in seeds), strict=True)
        ]
    )


def curve_rows(found: Found, configs: Iterable[Config]) -> list[dict[str, Any]]:
    """The curves as a tidy table. A run that several panels show is there once."""
    return [
        {**run_columns(config), "round": t, "accuracy": accuracy}
        for config in {label(config): config for config in configs}.values()
        if (run := found.run(config)) is not None
        for t, accuracy in run.history.curve
    ]


def run_columns(config: Config) -> dict[str, Any]:
    """The columns that say which run it is. One that waits for everybody is averaged one way."""
    waits = names.waits(config.method)
    return {
        "model": config.model,
        "method": config.method,
        "average": "" if waits else config.average,
        "stragglers": config.stragglers,
        "seed": config.seed,
    }


@dataclass(frozen=True)
class Line:
    """A line of a chart, wherever it appears."""

    name: str
    colour: str
    dashed: bool = False
    bold: bool = False


def method_lines(methods: Sequence[str]) -> list[Line]:
    """One line a method: the ceiling dashed, SALF bold, colours as in all charts."""
    return [
        Line(names.method(method), colour, names.waits(method), method == "salf")
        for method, colour in zip(methods, names.colours(methods), strict=True)
    ]


@dataclass(frozen=True)
class Point:
    """An accuracy: a point of a line, in a panel."""

    line: str
    x: float
    y: Interval
    column: str = ""
    row: str = ""


def chart(
    points: Sequence[Point],
    lines: Sequence[Line],
    *,
    title: str,
    subtitle: Sequence[str],
    x: str,
    y: str,
    ticks: Sequence[float] = (),
    height: int = 220,
    dots: bool = False,
) -> Spec:
    """Lines in panels that can be read alone, with the interval as a band, or with dots as a bar.

    `x` and `y` are the titles of the axes, `ticks` those of x where round numbers will not do.
    """
    alt = optional("altair")
    chosen = alt.selection_point(fields=["line"], bind="legend")
    shown = [line.name for line in lines]
    base = alt.Chart(alt.InlineData(_records(points, lines))).encode(
        x=alt.X(
            "x:Q",
            title=x,
            scale=alt.Scale(domain=[0, max((point.x for point in points), default=1)], nice=False),
            axis=alt.Axis(values=list(ticks)) if ticks else alt.Axis(tickCount=5),
        ),
        color=alt.Color(
            "line:N",
            scale=alt.Scale(domain=shown, range=[line.colour for line in lines]),
            legend=legend(),
        ),
    )
    value = {"title": y, "scale": alt.Scale(domain=_y_domain(points), nice=False)}

    def seen(opacity: float) -> Any:
        return alt.when(chosen).then(alt.value(opacity)).otherwise(alt.value(opacity / 8))

    line = base.mark_line(strokeJoin="round").encode(
        y=alt.Y("mean:Q", **value),
        strokeDash=alt.StrokeDash(
            "line:N",
            scale=alt.Scale(
                domain=shown, range=[[5, 3] if line.dashed else [1, 0] for line in lines]
            ),
            legend=legend(),
        ),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None),
        opacity=seen(1),
    )
    if dots:  # a level that is the same everywhere has none
        base = base.transform_filter("!datum.level")
    spread = (base.mark_rule(strokeWidth=1.5) if dots else base.mark_area()).encode(
        y=alt.Y("low:Q", **value), y2="high:Q", opacity=seen(0.6 if dots else 0.12)
    )
    # Where no dots are to be seen, there are some to hover over.
    marks = base.mark_point(filled=True, size=50).encode(
        y=alt.Y("mean:Q", **value),
        opacity=seen(1) if dots else alt.value(0),
        tooltip=[
            alt.Tooltip("line:N", title="Line"),
            alt.Tooltip("x:Q", title=x),
            *(
                alt.Tooltip(f"{name}:Q", title=name.capitalize(), format=".4f")
                for name in ("mean", "low", "high")
            ),
        ],
    )
    several_seeds = any(point.y.half is not None for point in points)
    layers = alt.layer(*[spread, line, marks] if several_seeds else [line, marks])
    heading = alt.Title(title, subtitle=list(subtitle), anchor="start", offset=12)
    return spec(_faceted(layers.add_params(chosen), points, height).properties(title=heading))


def _records(points: Sequence[Point], lines: Sequence[Line]) -> list[dict[str, Any]]:
    by_name: Mapping[str, Line] = {line.name: line for line in lines}
    return [
        {
            "line": point.line,
            "x": point.x,
            "level": by_name[point.line].dashed,
            "width": 2.8 if by_name[point.line].bold else 1.6,
            **point.y.drawn(),
            "column": point.column,
            "row": point.row,
        }
        # What is bold is drawn over the others.
        for point in sorted(points, key=lambda point: by_name[point.line].bold)
    ]


def _y_domain(points: Sequence[Point]) -> list[float]:
    """All intervals, and a little more; but no accuracy is below 0 or above 1."""
    seen = [end for point in points for end in point.y.drawn().values()] or [0.0, 1.0]
    margin = 0.04 * (max(seen) - min(seen)) or 0.01
    return [max(min(seen) - margin, 0.0), min(max(seen) + margin, 1.0)]


def _faceted(layers: Any, points: Sequence[Point], height: int) -> Any:
    alt = optional("altair")
    columns = list(dict.fromkeys(point.column for point in points))
    rows = list(dict.fromkeys(point.row for point in points))
    header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
    facets = {}
    if any(columns):
        facets["column"] = alt.Column("column:N", sort=columns, header=header)
    if any(rows):
        facets["row"] = alt.Row("row:N", sort=rows, header=header)
    room = _WIDTH - (_ROW_HEADING if any(rows) else 0)
    width = min(_WIDEST, room // max(1, len(columns)) - _GAP)
    sized = layers.properties(width=width, height=height)
    return sized.facet(**facets) if facets else sized
