"""Charts of a comparison, as Vega-Lite: accuracy over rounds or simulated seconds; voice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from textwrap import wrap
from typing import Literal

import numpy as np

from salf.report import names
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point, figure, method_lines
from salf.report.measured import seeds
from salf.report.style import INK, Axis, Spec, of, thinned, tips
from salf.runs.compare import Case, Comparison
from salf.runs.run import Result

Measure = Literal["accuracy", "train_loss"]
Over = Literal["round", "clock"]

AXES: Mapping[Over, str] = {"round": "Rounds", "clock": "Simulated seconds"}
GRID = 60  # points of a curve whose seeds are measured at different times
VOICE = "Voice: whose gradients the model is made of"
MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}
_PARTS = ("split", "average", "more", "stragglers")  # that tell panels apart


def headings(
    comparison: Comparison, case: Case, *, apart: bool = True, by: Sequence[str] = _PARTS
) -> list[str]:
    """What tells a case's panel apart from others; or what all panels have in common."""
    cases, base = list(comparison.results), comparison.base
    found = {
        "split": names.split(case.split),
        "average": names.AVERAGES.get(case.average, case.average),
        "more": names.values(case.more),
        "stragglers": names.fleet(base)
        if base.fleet
        else names.condition(base.depth, case.stragglers),
    }
    several = {part for part in _PARTS if len({getattr(each, part) for each in cases}) > 1}
    return [found[part] for part in by if (part in several) == apart and found[part]]


def shown(comparison: Comparison) -> tuple[Measure, Over]:
    """Accuracy, unless it was measured in no run (there may be no held-out data), over what."""
    runs = (run for results in comparison.results.values() for run in results)
    measure: Measure = "accuracy" if any(run.history.curve for run in runs) else "train_loss"
    return measure, "clock" if comparison.base.fleet else "round"


def curves(comparison: Comparison, *, titled: bool = False) -> Spec:
    """Accuracy or loss over simulated seconds or rounds: mean, lowest and highest of the seeds."""
    base, (measure, over) = comparison.base, shown(comparison)
    points = [
        replace(point, line=_name(case), panel="\n".join(lines))
        for case, results in comparison.results.items()
        for lines in [[line for part in headings(comparison, case) for line in wrap(part, 30)]]
        for point in _curve(results, measure, over)
    ]
    last = max([point.x for point in points], default=1.0)
    if over == "clock":
        last = max(last, base.seconds or 0.0)
    x, y = Axis(AXES[over], domain=(0, last)), Axis(MEASURES[measure])
    height, widest = (280, 720) if over == "clock" else (200, 560)
    chart = Lines(points, _lines(comparison), x, y, height=height, widest=widest)
    if not titled:
        return figure(chart)
    count = seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    shared = headings(comparison, next(iter(comparison.results)), apart=False)
    subtitle = "; ".join([*shared, spread if count > 1 else "one seed"])
    title = f"{base.given.get('model', base.model)} on {names.data(base.data)}, {names.users(base)}"
    return figure(chart, title=title, subtitle=[subtitle])


def heard(comparison: Comparison) -> list[Case]:
    """The cases with a record of the users' voice, of one split and average."""
    first = next(iter(comparison.results))
    return [
        case
        for case, runs in comparison.results.items()
        if (case.split, case.average, case.more) == (first.split, first.average, first.more)
        and all(run.summary.get("voice") for run in runs)
    ]


def voice(comparison: Comparison, titled: bool = False) -> Spec:
    """The weight of each class beside its part of the data, and of each user, sorted."""
    points, records = [], []
    for case in heard(comparison):
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
    lines = [line for line in _lines(comparison) if line.name in {point.line for point in points}]
    x, y = Axis("Users, the least heard first"), Axis("Voice, in equal parts")
    users = Lines(points, lines, x, y, level=1, height=260, widest=380)
    if not records:
        return figure(users, title=VOICE if titled else "")
    colours = {line.name: line.colour for line in lines}
    scale = alt.Scale(domain=[*colours], range=[*colours.values()])
    base = of(records, width=380, height=260)
    bars = base.mark_bar().encode(
        x=alt.X("class:O", title="Class", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("line:N", sort=None),
        y=alt.Y("voice:Q", title="Part of the voice", axis=alt.Axis(format="%")),
        color=alt.Color("line:N", sort=None, scale=scale, legend=None),
        tooltip=tips(line="Method", **{"class": "Class"}, voice=("Voice", ".1%")),
    )
    marks = base.mark_tick(color=INK, thickness=2, width=32)
    classes = bars + marks.encode(x="class:O", y=alt.Y("data:Q"))
    return figure(classes, users, title=VOICE if titled else "")


def _curve(results: Sequence[Result], measure: Measure, over: Over) -> list[Point]:
    """The mean over the seeds, the lowest and the highest, which may be measured at different x.

    Between two evaluations a run's value is interpolated; after the last it stays.
    """
    found = [
        [
            (getattr(row, over), value)
            for row in result.history.rows
            if (value := getattr(row, measure)) is not None and isfinite(value)
        ]
        for result in results
    ]
    runs = [np.array(each, np.float64).T for each in found if each]
    if not runs:
        return []
    grid = np.array(thinned(runs[0][0]))
    if any(not np.array_equal(at, runs[0][0]) for at, _ in runs):
        grid = np.linspace(max(at[0] for at, _ in runs), max(at[-1] for at, _ in runs), GRID)
        grid = np.unique(grid.round()) if over == "round" else grid
    values = np.array([np.interp(grid, at, measured) for at, measured in runs])
    table = np.round([grid, values.mean(0), values.min(0), values.max(0)], 6).T.tolist()
    return [Point("", x, mean, *(ends if len(runs) > 1 else [])) for x, mean, *ends in table]


def _name(case: Case) -> str:
    return names.variant(case.method, case.batches)


def _lines(comparison: Comparison) -> list[Line]:
    """A line per method and way to size batches.

    On a clock FedAvg is no level to compare others with: dashes are for equal-time batches.
    """
    variants = list(dict.fromkeys((case.method, case.batches) for case in comparison.results))
    several = len({batches for _, batches in variants}) > 1
    return [
        replace(
            line,
            name=names.variant(method, batches),
            dashed=several and batches != "equal" if comparison.base.fleet else line.dashed,
        )
        for line, (method, batches) in zip(
            method_lines([method for method, _ in variants]), variants, strict=True
        )
    ]
