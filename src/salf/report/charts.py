"""Charts of a comparison, as Vega-Lite: over the rounds, at the end, over ratios, over layers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from salf.experiments.compare import Case, Comparison
from salf.experiments.run import Result
from salf.report import names
from salf.report.extra import optional
from salf.report.lines import Axis, Lines, Point, figure, method_lines
from salf.report.measured import Spread, methods, ratios, seeds, test_accuracy
from salf.report.panels import Panels
from salf.report.style import INK, Spec, spec, thinned

Measure = Literal["accuracy", "train_loss"]

MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}


def curves(comparison: Comparison, measure: Measure, *, titled: bool = False) -> Spec:
    """A measure over the rounds: the mean over the seeds, and from the lowest to the highest.

    With a title it can be read without the page around it.
    """
    panels = Panels.of(comparison)
    points = [
        _point(panels, case, spread, t)
        for case, results in comparison.results.items()
        for t, spread in _curve(results, measure)
    ]
    last = max((point.x for point in points), default=1)
    chart = Lines(
        points,
        method_lines(methods(comparison)),
        x=Axis("Round", domain=(0, last)),
        y=Axis(MEASURES[measure]),
        height=200,
    )
    return figure(chart, **_title(comparison, panels) if titled else {})


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
    colours = alt.Scale(domain=_methods(comparison), range=names.colours(methods(comparison)))
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
            method_lines(methods(comparison)),
            x=Axis("Stragglers", percent=True, ticks=ratios(comparison)),
            y=Axis("Test accuracy"),
            interval="bar",
        )
    )


def reach(comparison: Comparison) -> Spec:
    """How many users' updates each layer got, on average over rounds and seeds."""
    alt = optional("altair")
    first = next(iter(comparison.results))
    shown = {
        case: results
        for case, results in comparison.results.items()
        # Who reaches what depends on neither: the same depths are drawn in all of them.
        if (case.split, case.average) == (first.split, first.average)
    }
    panels = Panels.of(comparison, shown)
    layers = _layers(comparison)
    records = [
        {"method": names.method(case.method), **panels.place(case), "layer": layer, "users": users}
        for case, results in shown.items()
        for layer, users in zip(layers, _mean_reached(results), strict=True)
    ]
    flat = max(map(len, layers)) < 4
    base = alt.Chart(alt.InlineData(records)).encode(
        x=alt.X(
            "layer:O",
            sort=layers,
            title="Layer, from the input on",
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
    return Point(
        names.method(case.method), x, mean, **ends, column=place["column"], row=place["row"]
    )


def _title(comparison: Comparison, panels: Panels) -> dict[str, Any]:
    base, count = comparison.base, seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    return {
        "title": f"{base.model} on {names.data(base.data)}, {names.users(base)}",
        "subtitle": ["; ".join([*panels.shared(), spread if count > 1 else "one seed"])],
    }


def _methods(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison)]
