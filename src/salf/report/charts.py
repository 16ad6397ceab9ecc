"""Figures of a comparison: accuracy over rounds or simulated seconds, and what explains it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from salf.common.figures import (
    Axis,
    Bars,
    Figure,
    Lanes,
    Line,
    Lines,
    Point,
    ordered,
    thinned,
)
from salf.report import names
from salf.report.measured import seeds
from salf.runs.compare import Case, Comparison
from salf.runs.lanes import LINK, LOST
from salf.runs.run import Result

Measure = Literal["accuracy", "train_loss"]
Over = Literal["round", "clock"]

AXES: Mapping[Over, str] = {"round": "Rounds", "clock": "Simulated seconds"}
MEASURES: Mapping[Measure, str] = {
    "accuracy": "Accuracy on held-out data",
    "train_loss": "Training loss",
}
LINKS, GREY = Line("download, upload", "#8c959f"), "#d9b3ae"
PARTS = ("split", "average", "more", "stragglers")  # that tell panels apart


def headings(
    comparison: Comparison, case: Case, *, apart: bool = True, by: Sequence[str] = PARTS
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
    several = {part for part in PARTS if len({getattr(each, part) for each in cases}) > 1}
    return [found[part] for part in by if (part in several) == apart and found[part]]


def shown(comparison: Comparison) -> tuple[Measure, Over]:
    """Accuracy, unless it was measured in no run (there may be no held-out data), over what."""
    runs = (run for results in comparison.results.values() for run in results)
    measure: Measure = "accuracy" if any(run.history.curve for run in runs) else "train_loss"
    return measure, "clock" if comparison.base.fleet else "round"


def curves(comparison: Comparison) -> Figure:
    """Accuracy or loss over simulated seconds or rounds: mean, lowest and highest of the seeds."""
    base, (measure, over) = comparison.base, shown(comparison)
    points = [
        replace(point, line=name(case), panel="\n".join(headings(comparison, case)))
        for case, results in comparison.results.items()
        for point in _curve(results, measure, over)
    ]
    last = max([point.x for point in points], default=1.0)
    if over == "clock":
        last = max(last, base.seconds or 0.0)
    x, y = Axis(AXES[over], domain=(0, last)), Axis(MEASURES[measure])
    chart = Lines(points, _lines(comparison), x, y, height=280 if over == "clock" else 200)
    count = seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    shared = headings(comparison, next(iter(comparison.results)), apart=False)
    subtitle = "; ".join([*shared, spread if count > 1 else "one seed"])
    title = f"{base.given.get('model', base.model)} on {names.data(base.data)}, {names.users(base)}"
    return Figure([chart], title, [subtitle])


def by_condition(comparison: Comparison) -> dict[str, list[Result]]:
    """The runs by method and stragglers, on which it depends who reaches what, and little else."""
    first, found = next(iter(comparison.results)), dict[str, list[Result]]()
    for case, results in comparison.results.items():
        if (case.split, case.average, case.more) == (first.split, first.average, first.more):
            told = [name(case), *headings(comparison, case, by=("stragglers",))]
            found[", ".join(told)] = results
    return found


def participation(comparison: Comparison) -> Figure:
    """How many of the users asked finished, were stopped on the way, or delivered nothing."""
    runs, asked = by_condition(comparison), comparison.base.cohort_size()
    parts = []
    for results in runs.values():
        reached = [row.reached for run in results for row in run.history.rows]
        full, some = (
            min(1.0, float(np.mean([row[at] for row in reached])) / asked) for at in (0, -1)
        )
        parts.append([full, some - full, 1 - some])
    kinds = ("all layers", "#0072B2"), ("some layers", "#E69F00"), ("no layer", GREY)
    lines = [Line(*kind) for kind in kinds]
    y = Axis("Users of a round, on average", percent=True, domain=(0, 1))
    return Figure([Bars([*runs], lines, np.round(parts, 4).T.tolist(), y, stacked=True)])


def waste(comparison: Comparison) -> Figure:
    """The parts of all work and bytes that are in no update."""
    first = next(iter(comparison.results))
    cases = [each for each in comparison.results if each.more == first.more]
    clocked = {name(case): comparison.clocked(case) for case in cases}
    values = [
        [
            round(float(np.mean([getattr(run, lost) for run in runs])), 4)
            for runs in clocked.values()
        ]
        for lost in ("lost_work", "lost_bytes")
    ]
    lines = [Line("work", "#0072B2"), Line("bytes", "#E69F00")]
    return Figure([Bars([*clocked], lines, values, Axis("Lost", percent=True))])


def swimlanes(comparison: Comparison) -> Figure | None:
    """A few rounds of a method with a deadline, and of one that waits, if these are known."""
    charts, waiting = [], set[bool]()
    by_salf = sorted(comparison.results.items(), key=lambda each: each[0].method != "salf")
    for case, (result, *_) in by_salf:
        waits, found = names.waits(case.method), result.summary.get("lanes")
        if found and waits not in waiting:
            waiting.add(waits)
            charts.append(_lanes(name(case), found, result.summary["layers"]))
    return Figure(charts) if charts else None


def _lanes(method: str, found: Sequence[Mapping[str, Any]], layers: Sequence[str]) -> Lanes:
    labels = names.layers(layers)
    colours = zip(labels, ordered(len(labels)), strict=True)
    kinds = [LINKS, *(Line(f"layer {label}", colour) for label, colour in colours)]
    place = {LINK: 0, LOST: len(kinds)}
    kinds.append(Line("work that is in no update", GREY))
    rounds = [
        {
            "name": f"{method}, round {each['round']}",
            "end": each["seconds"],
            "deadline": each["deadline"],
            "users": [f"user {user}" for user in each["users"]],
            "lanes": [
                [[begin, end, place.get(kind, kind)] for begin, end, kind in pieces]
                for pieces in each["pieces"]
            ],
        }
        for each in found
    ]
    return Lanes(kinds, rounds)


def heard(comparison: Comparison) -> dict[str, list[Result]]:
    """The runs of each method, if they have a record of the users' voice."""
    runs = by_condition(comparison) if comparison.base.fleet else {}
    return {m: some for m, some in runs.items() if all(run.summary.get("voice") for run in some)}


def voice(comparison: Comparison) -> Figure:
    """The weight of each class beside its part of the data, and of each user, sorted."""
    points, by_class, data = [], dict[str, list[float]](), list[float]()
    for method, runs in heard(comparison).items():
        said = [run.summary["voice"] for run in runs]
        ranked = np.mean([sorted(each["users"]) for each in said], axis=0)
        points += [
            Point(method, place, round(float(v) * len(ranked), 4))
            for place, v in enumerate(ranked, 1)
        ]
        by_class[method] = np.mean([each["classes"] for each in said], axis=0).round(5).tolist()
        data = np.mean([each["data"] for each in said], axis=0).round(5).tolist()
    lines = [line for line in _lines(comparison) if line.name in by_class]
    x, y = Axis("Users, the least heard first"), Axis("Voice, in equal parts")
    users = Lines(points, lines, x, y, level=1)
    if not data:
        return Figure([users])
    groups = [f"class {label}" for label in range(len(data))]
    values = [by_class[line.name] for line in lines]
    bars = Bars(groups, lines, values, Axis("Part of the voice", percent=True), data)
    return Figure([users, bars])


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
    every = np.unique(np.concatenate([at for at, _ in runs]))
    grid = np.array(thinned(every[every >= max(at[0] for at, _ in runs)]))
    values = np.array([np.interp(grid, at, measured) for at, measured in runs])
    table = np.round([grid, values.mean(0), values.min(0), values.max(0)], 6).T.tolist()
    return [Point("", x, mean, *(ends if len(runs) > 1 else [])) for x, mean, *ends in table]


def name(case: Case) -> str:
    """A method with its batches."""
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
            names.lines([method for method, _ in variants]), variants, strict=True
        )
    ]
