"""Charts of a comparison, as Vega-Lite: over rounds and seconds, at the end, over layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from salf.report import names
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point, figure, method_lines
from salf.report.measured import Spread, lines, ratios, seeds, test_accuracy
from salf.report.panels import Panels
from salf.report.style import INK, Axis, Records, Spec, coloured, named, of, spec, thinned, tips
from salf.runs.compare import Case, Comparison
from salf.runs.run import Result

Measure = Literal["accuracy", "train_loss"]
Over = Literal["round", "clock"]

AXES: Mapping[Over, str] = {"round": "Round", "clock": "Simulated seconds"}
GRID = 60  # points of a curve whose seeds are measured at different times
VOICE = "Voice: whose gradients the model is made of"
MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}


def curves(
    comparison: Comparison, measure: Measure, *, titled: bool = False, over: Over = "round"
) -> Spec:
    """A measure over rounds or simulated seconds: mean, lowest and highest of the seeds."""
    panels = Panels.of(comparison)
    points = [
        _point(panels, case, spread, x)
        for case, results in comparison.results.items()
        for x, spread in _curve(results, measure, over)
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


def over_ratios(comparison: Comparison) -> Spec:
    """The test accuracy at the end over the ratio of stragglers."""
    panels = Panels.of(comparison, by=("split", "average", "more"))
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
    shown = {case: comparison.results[case] for case in of_first_panel(comparison)}
    panels = Panels.of(comparison, shown)
    first = next(iter(shown.values()))[0]
    layers = names.layers(first.summary.get("layers") or [""] * len(first.history.rows[0].reached))
    records = []
    for case, results in shown.items():
        counts = [row.reached for result in results for row in result.history.rows]
        records += [
            {"method": _name(case), **panels.place(case), "layer": layer, "users": users}
            for layer, users in zip(layers, np.mean(counts, axis=0).tolist(), strict=True)
        ]
    angle = alt.Axis(labelAngle=0 if max(map(len, layers)) < 4 else -35)
    base = of(records).encode(
        x=alt.X("layer:O", sort=layers, title="Layer, from the input", axis=angle),
        y=named("method", list(_colours(comparison))),
        tooltip=tips(method="Method", layer="Layer", users=("Users", ".1f")),
    )
    # Light enough for dark text on all of it.
    domain, shades = [0, comparison.base.cohort_size()], ["#ffffff", "#56B4E9"]
    scale = alt.Scale(domain=domain, range=shades, interpolate="rgb")
    cells = base.mark_rect(stroke="white")
    numbers = base.mark_text(fontSize=11, color=INK).encode(text=alt.Text("users:Q", format=".1f"))
    coloured_cells = cells.encode(color=alt.Color("users:Q", scale=scale, legend=None))
    return spec(panels.faceted(alt.layer(coloured_cells, numbers)))


def heard(comparison: Comparison) -> list[Case]:
    """The cases with a record of the users' voice."""
    return [
        case
        for case in of_first_panel(comparison, values=True)
        if all(run.summary.get("voice") for run in comparison.results[case])
    ]


def voice(comparison: Comparison, titled: bool = False) -> Spec:
    """The weight of each class beside its part of the data, and of each user, sorted."""
    cases = heard(comparison)
    shown = [line for line in _lines(comparison) if line.name in map(_name, cases)]
    points, records = [], []
    for case in cases:
        said = [run.summary["voice"] for run in comparison.results[case]]
        ranked = np.mean([sorted(each["users"]) for each in said], axis=0)
        points += [
            Point(_name(case), place, round(float(v) * len(ranked), 4))
            for place, v in enumerate(ranked, 1)
        ]
        heights = [np.mean([each[part] for each in said], axis=0) for part in ("classes", "data")]
        records += [
            {"line": _name(case), "class": label, "voice": voiced, "data": data}
            for label, (voiced, data) in enumerate(np.round(heights, 5).T.tolist())
        ]
    users = Lines(
        points,
        shown,
        x=Axis("Users, the least heard first"),
        y=Axis("Voice, in equal parts"),
        level=1,
        height=260,
        widest=380,
    )
    classes = [_classes(records, _colours(comparison))] if records else []
    return figure(*classes, users, title=VOICE if titled else "", beside=True)


def _classes(records: Records, colours: Mapping[str, str]) -> Any:
    base = of(records, width=380, height=260)
    bars = base.mark_bar().encode(
        x=alt.X("class:O", title="Class", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("line:N", sort=None),
        y=alt.Y("voice:Q", title="Part of the voice", axis=alt.Axis(format="%")),
        color=coloured("line", colours),
        tooltip=tips(line="Method", **{"class": "Class"}, voice=("Voice", ".1%")),
    )
    marks = base.mark_tick(color=INK, thickness=2, width=32)
    return bars + marks.encode(x="class:O", y=alt.Y("data:Q"))


def _curve(results: Sequence[Result], measure: Measure, over: Over) -> list[tuple[float, Spread]]:
    """(round or second, spread over the seeds), which may be measured at different ones.

    Between two evaluations a run's value is interpolated; after the last it stays.
    """
    runs = []
    for result in results:
        found = [
            (getattr(row, over), value)
            for row in result.history.rows
            if (value := getattr(row, measure)) is not None and isfinite(value)
        ]
        if found:
            runs.append(np.array(found, np.float64).T)
    if not runs:
        return []
    grid = np.array(thinned(runs[0][0]))
    if any(not np.array_equal(at, runs[0][0]) for at, _ in runs):
        grid = np.linspace(max(at[0] for at, _ in runs), max(at[-1] for at, _ in runs), GRID)
        grid = np.unique(grid.round()) if over == "round" else grid
    values = np.array([np.interp(grid, at, found) for at, found in runs])
    spreads = zip(grid.tolist(), map(Spread.of, values.T.tolist()), strict=True)
    return [(round(x, 6), spread) for x, spread in spreads if spread]


def _final(comparison: Comparison) -> list[tuple[Case, Spread, float]]:
    """(case, test accuracy, ratio of stragglers), wherever it was measured."""
    return [
        (case, spread, case.stragglers)
        for case in comparison.results
        if (spread := test_accuracy(comparison, case)) is not None
    ]


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


def _name(case: Case) -> str:
    return names.variant(case.method, case.batches)


def of_first_panel(comparison: Comparison, values: bool = False) -> list[Case]:
    """The cases of one split and average: who reaches what, and when, depends on neither.

    With `values`, also of the first values of other settings.
    """
    first = next(iter(comparison.results))
    found = [c for c in comparison.results if (c.split, c.average) == (first.split, first.average)]
    return [case for case in found if case.more == first.more or not values]


def _colours(comparison: Comparison) -> dict[str, str]:
    return {line.name: line.colour for line in _lines(comparison)}


def _lines(comparison: Comparison) -> list[Line]:
    """A line per method and way to size batches.

    On a clock FedAvg is no level to compare others with: dashes are for equal-time batches.
    """
    variants = lines(comparison)
    found = method_lines([method for method, _ in variants])
    several = comparison.base.fleet and len({batches for _, batches in variants}) > 1
    return [
        replace(
            line,
            name=names.variant(*key),
            dashed=bool(several and key[1] != "equal") if comparison.base.fleet else line.dashed,
        )
        for line, key in zip(found, variants, strict=True)
    ]
