"""Charts of a comparison, as Vega-Lite: over the rounds, at the end, over ratios, over layers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from salf.experiments.compare import Case, Comparison
from salf.experiments.run import Result
from salf.report import names
from salf.report.extra import optional
from salf.report.measured import Spread, methods, ratios, seeds, test_accuracy
from salf.report.panels import Panels
from salf.report.style import INK, Spec, legend, spec, thinned

Measure = Literal["accuracy", "train_loss"]

MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}


def curves(comparison: Comparison, measure: Measure, *, titled: bool = False) -> Spec:
    """A measure over the rounds: the mean over the seeds, and from the lowest to the highest.

    With a title it can be read alone, without the page around it.
    """
    alt = optional("altair")
    panels = Panels.of(comparison)
    records = [
        _record(panels, case, spread, round=t)
        for case, results in _in_drawing_order(comparison)
        for t, spread in _curve(results, measure)
    ]
    last = max((record["round"] for record in records), default=1)
    y = {"title": MEASURES[measure], "scale": alt.Scale(zero=False)}
    chosen = alt.selection_point(fields=["method"], bind="legend")
    base = alt.Chart(alt.InlineData(records)).encode(
        x=alt.X("round:Q", title="Round", scale=alt.Scale(domain=[0, last], nice=False)),
        color=_colours(comparison, legend()),
    )
    band = base.mark_area().encode(
        y=alt.Y("low:Q", **y),
        y2="high:Q",
        opacity=alt.when(chosen).then(alt.value(0.14)).otherwise(alt.value(0.02)),
    )
    line = base.mark_line(strokeJoin="round").encode(
        y=alt.Y("mean:Q", **y),
        strokeDash=_dashes(comparison),
        strokeWidth=_widths(),
        opacity=alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.1)),
    )
    # Points that cannot be seen, to hover over.
    points = base.mark_point(size=60, filled=True, opacity=0).encode(
        y=alt.Y("mean:Q", **y), tooltip=_tooltip(alt.Tooltip("round:Q", title="Round"))
    )
    layers = [band, line, points] if seeds(comparison) > 1 else [line, points]
    chart = panels.faceted(alt.layer(*layers).add_params(chosen), height=200)
    return spec(chart.properties(title=_title(comparison, panels)) if titled else chart)


def final_accuracy(comparison: Comparison) -> Spec:
    """The test accuracy at the end: the mean over the seeds, and from the lowest to the highest."""
    alt = optional("altair")
    panels = Panels.of(comparison)
    x = {
        "title": "Test accuracy",
        "scale": alt.Scale(zero=False, padding=8),
        "axis": alt.Axis(tickCount=4),
    }
    base = alt.Chart(alt.InlineData(_final(comparison, panels))).encode(
        y=alt.Y("method:N", sort=_methods(comparison), title=None),
        color=_colours(comparison, None),
        tooltip=_tooltip(),
    )
    span = base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q", **x), x2="high:Q")
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(x=alt.X("mean:Q", **x))
    return spec(panels.faceted(alt.layer(span, dots)))


def over_ratios(comparison: Comparison) -> Spec:
    """The test accuracy at the end over the ratio of stragglers."""
    alt = optional("altair")
    panels = Panels.of(comparison, by=("split", "average"))
    measured = ratios(comparison)
    y = {"title": "Test accuracy", "scale": alt.Scale(zero=False)}
    base = alt.Chart(alt.InlineData(_final(comparison, panels))).encode(
        x=alt.X(
            "ratio:Q",
            title="Stragglers",
            scale=alt.Scale(domain=[measured[0], measured[-1]], nice=False, padding=12),
            axis=alt.Axis(values=measured, labelExpr="format(100 * datum.value, '.3~g') + ' %'"),
        ),
        y=alt.Y("mean:Q", **y),
        color=_colours(comparison, legend()),
        tooltip=_tooltip(alt.Tooltip("ratio:Q", title="Stragglers", format=".3~%")),
    )
    span = base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    line = base.mark_line().encode(strokeDash=_dashes(comparison), strokeWidth=_widths())
    dots = base.mark_point(filled=True, size=60, opacity=1)
    return spec(panels.faceted(alt.layer(span, line, dots), height=220))


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
        {**_place(panels, case), "layer": layer, "users": users}
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
        domain=[0, comparison.base.users], range=["#ffffff", "#56B4E9"], interpolate="rgb"
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


def _in_drawing_order(comparison: Comparison) -> list[tuple[Case, list[Result]]]:
    """SALF over the others."""
    return sorted(comparison.results.items(), key=lambda item: item[0].method == "salf")


def _curve(results: Sequence[Result], measure: Measure) -> list[tuple[int, Spread]]:
    """(round, spread over the seeds), wherever it was measured."""
    found: dict[int, list[float | None]] = {}
    for result in results:
        for row in result.history.rows:
            found.setdefault(row.round, []).append(getattr(row, measure))
    return thinned([(t, spread) for t, values in found.items() if (spread := Spread.of(values))])


def _final(comparison: Comparison, panels: Panels) -> list[dict[str, Any]]:
    return [
        _record(panels, case, spread, ratio=case.stragglers)
        for case, _ in _in_drawing_order(comparison)
        if (spread := test_accuracy(comparison, case)) is not None
    ]


def _mean_reached(results: Sequence[Result]) -> list[float]:
    """By layer."""
    rounds = [row.reached for result in results for row in result.history.rows]
    return [sum(counts) / len(counts) for counts in zip(*rounds, strict=True)]


def _layers(comparison: Comparison) -> list[str]:
    result = next(iter(comparison.results.values()))[0]
    return names.layers(result.summary.get("layers") or [""] * len(result.history.rows[0].reached))


def _place(panels: Panels, case: Case) -> dict[str, Any]:
    return {"method": names.method(case.method), **panels.place(case)}


def _record(panels: Panels, case: Case, spread: Spread, **more: float) -> dict[str, Any]:
    numbers = {"mean": spread.mean, "low": spread.low, "high": spread.high}
    return {
        **_place(panels, case),
        **more,
        **{name: round(number, 6) for name, number in numbers.items()},
    }


def _title(comparison: Comparison, panels: Panels) -> Any:
    base, count = comparison.base, seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    return optional("altair").Title(
        f"{base.model} on {names.data(base.data)}, {base.users} users",
        subtitle="; ".join([*panels.shared(), spread if count > 1 else "one seed"]),
        anchor="start",
        offset=12,
    )


def _tooltip(*more: Any) -> list[Any]:
    alt = optional("altair")
    return [
        alt.Tooltip("method:N", title="Method"),
        *more,
        *(
            alt.Tooltip(f"{name}:Q", title=title, format=".4f")
            for name, title in (("mean", "Mean"), ("low", "Lowest"), ("high", "Highest"))
        ),
    ]


def _colours(comparison: Comparison, shown: Any) -> Any:
    scale = _scale(comparison, names.colours(methods(comparison)))
    return optional("altair").Color("method:N", scale=scale, legend=shown)


def _dashes(comparison: Comparison) -> Any:
    """A dashed line for the ceiling, which is no competitor. In one legend with the colours."""
    dashes = [[5, 3] if names.waits(method) else [1, 0] for method in methods(comparison)]
    scale = _scale(comparison, dashes)
    return optional("altair").StrokeDash("method:N", scale=scale, legend=legend())


def _widths() -> Any:
    alt = optional("altair")
    salf = alt.datum.method == names.method("salf")
    return alt.when(salf).then(alt.value(2.8)).otherwise(alt.value(1.6))


def _scale(comparison: Comparison, values: Sequence[Any]) -> Any:
    return optional("altair").Scale(domain=_methods(comparison), range=list(values))


def _methods(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison)]
