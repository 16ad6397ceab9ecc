"""Charts of a comparison, as Vega-Lite: over rounds, seconds and ratios of stragglers; voice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from salf.report import names
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point, figure, method_lines
from salf.report.measured import Spread, data, lines, ratios, seeds, test_accuracy
from salf.report.style import INK, Axis, Records, Spec, coloured, of, thinned, tips
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
_PARTS = ("split", "average", "more", "stragglers")  # that tell panels apart
_MOST_COLUMNS = 4


class Panels:
    """The panel of each case. A heading says only what differs between panels."""

    def __init__(self, comparison: Comparison, by: Sequence[str] = _PARTS) -> None:
        self.cases, self.base = list(comparison.results), comparison.base
        several = [part for part in by if len({getattr(case, part) for case in self.cases}) > 1]
        # Ratios of stragglers are rows, all else is columns, to be seen next to each other.
        self.columns = [part for part in several if part != "stragglers"]
        self.rows = [part for part in several if part == "stragglers"]
        wide = {tuple(getattr(case, part) for part in self.columns) for case in self.cases}
        if len(wide) > _MOST_COLUMNS and len(self.columns) > 1:
            self.rows.append(self.columns.pop())
        if not self.columns:
            self.columns, self.rows = self.rows, self.columns

    def place(self, case: Case) -> dict[str, str]:
        """The fields of a point that say in which panel it is."""
        sides = {"column": self.columns, "row": self.rows}
        return {
            side: "\n".join(heading(self.base, case, part) for part in parts)
            for side, parts in sides.items()
        }

    def shared(self) -> list[str]:
        """The headings that all panels would have in common."""
        common = [part for part in _PARTS if part not in (*self.columns, *self.rows)]
        told = (heading(self.base, self.cases[0], part) for part in common)
        return [each.replace("\n", " ") for each in told if each]


def heading(base: Any, case: Case, part: str) -> str:
    """A case's split, way of averaging, other settings or stragglers, as people write them."""
    if part == "split":
        return names.split(case.split)
    if part == "average":
        return names.AVERAGES_SHORT.get(case.average, case.average)
    if part == "more":
        return names.values(case.more)
    return names.fleet(base) if base.fleet else names.condition(base.depth, case.stragglers)


def curves(
    comparison: Comparison, measure: Measure, *, titled: bool = False, over: Over = "round"
) -> Spec:
    """A measure over rounds or simulated seconds: mean, lowest and highest of the seeds."""
    panels = Panels(comparison)
    points = [
        _point(panels, case, spread, x)
        for case, results in comparison.results.items()
        for x, spread in _curve(results, measure, over)
    ]
    last = max((point.x for point in points), default=1)
    if over == "clock" and comparison.base.seconds:
        last = max(last, comparison.base.seconds)
    chart = Lines(
        points,
        _lines(comparison),
        x=Axis(AXES[over], domain=(0, last)),
        y=Axis(MEASURES[measure]),
        height=280 if over == "clock" else 200,
        widest=720 if over == "clock" else 560,
    )
    if not titled:
        return figure(chart)
    base, count = comparison.base, seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    subtitle = "; ".join([*panels.shared(), spread if count > 1 else "one seed"])
    title = f"{base.given.get('model', base.model)} on {data(comparison)}, {names.users(base)}"
    return figure(chart, title=title, subtitle=[subtitle])


def over_ratios(comparison: Comparison) -> Spec:
    """The test accuracy at the end over the ratio of stragglers."""
    panels = Panels(comparison, by=("split", "average", "more"))
    ends = {case: test_accuracy(comparison, case) for case in comparison.results}
    return figure(
        Lines(
            [_point(panels, case, end, case.stragglers) for case, end in ends.items() if end],
            _lines(comparison),
            x=Axis("Stragglers", percent=True, ticks=ratios(comparison)),
            y=Axis("Test accuracy"),
            interval="bar",
        )
    )


def of_first_panel(comparison: Comparison, values: bool = False) -> list[Case]:
    """The cases of one split and average: who reaches what, and when, depends on neither.

    With `values`, also of the first values of other settings.
    """
    first = next(iter(comparison.results))
    found = [c for c in comparison.results if (c.split, c.average) == (first.split, first.average)]
    return [case for case in found if case.more == first.more or not values]


def heard(comparison: Comparison) -> list[Case]:
    """The cases with a record of the users' voice."""
    return [
        case
        for case in of_first_panel(comparison, values=True)
        if all(run.summary.get("voice") for run in comparison.results[case])
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
    there = {point.line for point in points}
    shown = [line for line in _lines(comparison) if line.name in there]
    users = Lines(
        points,
        shown,
        x=Axis("Users, the least heard first"),
        y=Axis("Voice, in equal parts"),
        level=1,
        height=260,
        widest=380,
    )
    classes = [_classes(records, {line.name: line.colour for line in shown})] if records else []
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


def _point(panels: Panels, case: Case, spread: Spread, x: float) -> Point:
    mean, low, high = (round(number, 6) for number in (spread.mean, spread.low, spread.high))
    ends = {"low": low, "high": high} if spread.count > 1 else {}
    place = panels.place(case)
    return Point(_name(case), x, mean, **ends, column=place["column"], row=place["row"])


def _name(case: Case) -> str:
    return names.variant(case.method, case.batches)


def _lines(comparison: Comparison) -> list[Line]:
    """A line per method and way to size batches.

    On a clock FedAvg is no level to compare others with: dashes are for equal-time batches.
    """
    variants = lines(comparison)
    named = [
        replace(line, name=names.variant(*key))
        for line, key in zip(method_lines([m for m, _ in variants]), variants, strict=True)
    ]
    if not comparison.base.fleet:
        return named
    several = len({batches for _, batches in variants}) > 1
    return [
        replace(line, dashed=several and batches != "equal")
        for line, (_, batches) in zip(named, variants, strict=True)
    ]
