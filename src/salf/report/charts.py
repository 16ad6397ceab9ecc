"""Charts of a comparison, as Vega-Lite: over rounds and seconds, at the end, over layers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from salf.core.rows import Row
from salf.report import names
from salf.report.extra import optional
from salf.report.lines import Axis, Line, Lines, Point, figure, method_lines
from salf.report.measured import Spread, lines, mean_of, ratios, seeds, test_accuracy
from salf.report.panels import Panels
from salf.report.style import INK, Spec, spec, thinned
from salf.runs.compare import Case, Comparison
from salf.runs.run import Result

Measure = Literal["accuracy", "train_loss"]
Over = Literal["round", "clock"]

AXES: Mapping[Over, str] = {"round": "Round", "clock": "Simulated seconds"}
GRID = 60  # points of a curve whose seeds are measured at different times

MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}


def curves(
    comparison: Comparison, measure: Measure, *, titled: bool = False, over: Over = "round"
) -> Spec:
    """A measure over the rounds: the mean over the seeds, and from the lowest to the highest.

    Or over the simulated seconds. With a title it can be read without the page around it.
    """
    panels = Panels.of(comparison)
    points = [
        _point(panels, case, spread, t)
        for case, results in comparison.results.items()
        for t, spread in (
            _interpolated(results, measure, over)
            if comparison.base.fleet
            else _curve(results, measure)
        )
    ]
    last = max((point.x for point in points), default=1)
    if over == "clock" and comparison.base.seconds:
        last = comparison.base.seconds
    chart = Lines(
        points,
        _lines(comparison),
        x=Axis(AXES[over], domain=(0, last)),
        y=Axis(MEASURES[measure]),
        height=280 if over == "clock" else 200,
        widest=720 if over == "clock" else 560,
    )
    return figure(chart, **_title(comparison, panels) if titled else {})


def waste(comparison: Comparison) -> Spec:
    """Seconds that users waited, and shares of work and bytes that were thrown away, as bars."""
    alt = optional("altair")
    records: list[dict[str, Any]] = [
        {
            "method": _name(case),
            "waited": mean_of(comparison, case, "waited") / comparison.base.cohort_size(),
            "work": mean_of(comparison, case, "lost_work"),
            "bytes": mean_of(comparison, case, "lost_bytes"),
        }
        for case in of_first_panel(comparison)
    ]
    order = _methods(comparison)
    colours = alt.Scale(domain=order, range=names.colours([m for m, _ in lines(comparison)]))
    shown = []
    for i, (what, title, form) in enumerate(
        (
            ("waited", "Seconds a user waited", ".3~g"),
            ("work", "Work lost", ".0%"),
            ("bytes", "Bytes lost", ".0%"),
        )
    ):
        most = max(record[what] for record in records)
        base = alt.Chart(
            alt.InlineData(records), width=220, height=alt.Step(24), title=title
        ).encode(
            y=alt.Y("method:N", sort=order, title=None, axis=alt.Axis() if i == 0 else None),
            x=alt.X(
                f"{what}:Q",
                title=None,
                scale=alt.Scale(domain=[0, 1.25 * most or 1], nice=False),
                axis=alt.Axis(format=form, tickCount=4),
            ),
        )
        bars = base.mark_bar(opacity=0.8).encode(
            color=alt.Color("method:N", scale=colours, legend=None)
        )
        text = base.mark_text(align="left", dx=4, fontSize=11, color=INK).encode(
            text=alt.Text(f"{what}:Q", format=form)
        )
        shown.append(alt.layer(bars, text))
    return spec(alt.hconcat(*shown, spacing=24).configure_title(fontSize=12, anchor="start"))


def final_accuracy(comparison: Comparison) -> Spec:
    """The test accuracy at the end: the mean over the seeds, and from the lowest to the highest."""
    alt = optional("altair")
    panels = Panels.of(comparison)
    x = {
        "title": "Test accuracy",
        "scale": alt.Scale(zero=False, padding=8),
        "axis": alt.Axis(tickCount=4),
    }
    points = [_point(panels, *measured) for measured in _final(comparison)]
    colours = alt.Scale(
        domain=_methods(comparison), range=names.colours([m for m, _ in lines(comparison)])
    )
    base = alt.Chart(alt.InlineData([asdict(point) for point in points])).encode(
        y=alt.Y("line:N", sort=_methods(comparison), title=None),
        color=alt.Color("line:N", scale=colours, legend=None),
        tooltip=[
            alt.Tooltip("line:N", title="Method"),
            *(
                alt.Tooltip(f"{name}:Q", title=name.capitalize(), format=".4f")
                for name in ("mean", "low", "high")
            ),
        ],
    )
    span = base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q", **x), x2="high:Q")
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(x=alt.X("mean:Q", **x))
    return spec(panels.faceted(alt.layer(span, dots)))


def over_ratios(comparison: Comparison) -> Spec:
    """The test accuracy at the end over the ratio of stragglers."""
    panels = Panels.of(comparison, by=("split", "average"))
    return figure(
        Lines(
            [_point(panels, *measured) for measured in _final(comparison)],
            _lines(comparison),
            x=Axis("Stragglers", percent=True, ticks=ratios(comparison)),
            y=Axis("Test accuracy"),
            interval="bar",
        )
    )


def reach(comparison: Comparison) -> Spec:
    """How many users' updates each layer got, on average over rounds and seeds."""
    alt = optional("altair")
    shown = {case: comparison.results[case] for case in of_first_panel(comparison)}
    panels = Panels.of(comparison, shown)
    layers = _layers(comparison)
    records = [
        {"method": _name(case), **panels.place(case), "layer": layer, "users": users}
        for case, results in shown.items()
        for layer, users in zip(layers, _mean_reached(results), strict=True)
    ]
    flat = max(map(len, layers)) < 4
    base = alt.Chart(alt.InlineData(records)).encode(
        x=alt.X(
            "layer:O",
            sort=layers,
            title="Layer, from the input",
            axis=alt.Axis(labelAngle=0 if flat else -35),
        ),
        y=alt.Y("method:N", sort=_methods(comparison), title=None),
    )
    # Light enough for dark text on all of it.
    shades = alt.Scale(
        domain=[0, comparison.base.cohort_size()], range=["#ffffff", "#56B4E9"], interpolate="rgb"
    )
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color("users:Q", scale=shades, legend=None),
        tooltip=[
            alt.Tooltip("method:N", title="Method"),
            alt.Tooltip("layer:N", title="Layer"),
            alt.Tooltip("users:Q", title="Users", format=".1f"),
        ],
    )
    numbers = base.mark_text(fontSize=11, color=INK).encode(text=alt.Text("users:Q", format=".1f"))
    return spec(panels.faceted(alt.layer(cells, numbers)))


def _curve(results: Sequence[Result], measure: Measure) -> list[tuple[int, Spread]]:
    """(round, spread over the seeds), wherever it was measured."""
    found: dict[int, list[float | None]] = {}
    for result in results:
        for row in result.history.rows:
            found.setdefault(row.round, []).append(getattr(row, measure))
    return thinned([(t, spread) for t, values in found.items() if (spread := Spread.of(values))])


def _final(comparison: Comparison) -> list[tuple[Case, Spread, float]]:
    """(case, test accuracy, ratio of stragglers), wherever it was measured."""
    return [
        (case, spread, case.stragglers)
        for case in comparison.results
        if (spread := test_accuracy(comparison, case)) is not None
    ]


def _mean_reached(results: Sequence[Result]) -> list[float]:
    """By layer."""
    rounds = [row.reached for result in results for row in result.history.rows]
    return [sum(counts) / len(counts) for counts in zip(*rounds, strict=True)]


def _layers(comparison: Comparison) -> list[str]:
    result = next(iter(comparison.results.values()))[0]
    return names.layers(result.summary.get("layers") or [""] * len(result.history.rows[0].reached))


def _point(panels: Panels, case: Case, spread: Spread, x: float) -> Point:
    mean, low, high = (round(number, 6) for number in (spread.mean, spread.low, spread.high))
    ends = {"low": low, "high": high} if spread.count > 1 else {}
    place = panels.place(case)
    return Point(_name(case), x, mean, **ends, column=place["column"], row=place["row"])


def _title(comparison: Comparison, panels: Panels) -> dict[str, Any]:
    base, count = comparison.base, seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    return {
        "title": f"{base.model} on {names.data(base.data)}, {names.users(base)}",
        "subtitle": ["; ".join([*panels.shared(), spread if count > 1 else "one seed"])],
    }


def _methods(comparison: Comparison) -> list[str]:
    return [names.variant(*key) for key in lines(comparison)]


def _name(case: Case) -> str:
    return names.variant(case.method, case.batches)


def of_first_panel(comparison: Comparison) -> list[Case]:
    """The cases of one split and average: who reaches what, and when, depends on neither."""
    first = next(iter(comparison.results))
    place = (first.split, first.average)
    return [case for case in comparison.results if (case.split, case.average) == place]


def _lines(comparison: Comparison) -> list[Line]:
    """A line per method and way to size batches.

    On a clock FedAvg is no level to compare others with: dashes are for equal-time batches.
    """
    found = method_lines([method for method, _ in lines(comparison)])
    if not comparison.base.fleet:
        return found
    several = len({batches for _, batches in lines(comparison)}) > 1
    return [
        replace(line, name=names.variant(*key), dashed=several and key[1] != "equal")
        for line, key in zip(found, lines(comparison), strict=True)
    ]


def _interpolated(
    results: Sequence[Result], measure: Measure, over: Over
) -> list[tuple[float, Spread]]:
    """(round or second, spread over the seeds), which are not measured at the same ones.

    Between two evaluations a run's value is interpolated; after the last it stays.
    """
    runs = []
    for result in results:
        rows = [row for row in result.history.rows if _of(row, measure) is not None]
        if rows:
            at = np.array([getattr(row, over) for row in rows], np.float64)
            runs.append((at, np.array([_of(row, measure) for row in rows], np.float64)))
    if not runs:
        return []
    grid = np.linspace(max(at[0] for at, _ in runs), max(at[-1] for at, _ in runs), GRID)
    if over == "round":
        grid = np.unique(grid.round())
    values = np.array([np.interp(grid, at, found) for at, found in runs])
    spreads = zip(grid.tolist(), map(Spread.of, values.T.tolist()), strict=True)
    return [(round(x, 6), spread) for x, spread in spreads if spread]


def _of(row: Row, measure: Measure) -> float | None:
    value: float | None = getattr(row, measure)
    return value if value is not None and isfinite(value) else None
