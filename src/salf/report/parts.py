"""The parts that all pages of runs have: curves, and what explains them."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Literal

import numpy as np

from salf.common.figures import (
    Axis,
    Bars,
    Figure,
    Lanes,
    Line,
    Lines,
    Point,
    Voices,
    ordered,
    thinned,
)
from salf.core.rows import Row
from salf.report import names
from salf.report.page import Chart, Section
from salf.report.tables import Table
from salf.report.texts import text, texts
from salf.runs.compare import Clocked
from salf.runs.run import Result

Measure = Literal["accuracy", "train_loss"]
Over = Literal["round", "clock", "seconds"]

AXES: Mapping[str, str] = texts()["axes"]  # of what is measured, and over what
LINKS, GREY = Line("download, upload", "#8c959f"), "#d9b3ae"
UNUSED = Line("work that is in no update", GREY)
FULL, SOME = "#0072B2", "#E69F00"


Traces = Mapping[str, Sequence[Result]]  # the runs of each line, seed by seed


def curve(
    runs: Sequence[Sequence[Row]], measure: Measure, over: Over, line: str = "", panel: str = ""
) -> list[Point]:
    """The mean over the seeds, the lowest and the highest, which may be measured at different x.

    Between two evaluations a run's value is interpolated; after the last it stays.
    """
    found = [
        [
            (at, value)
            for row, at in zip(rows, _places(rows, over), strict=True)
            if (value := getattr(row, measure)) is not None and isfinite(value)
        ]
        for rows in runs
    ]
    known = [np.array(each, np.float64).T for each in found if each]
    if not known:
        return []
    every = np.unique(np.concatenate([at for at, _ in known]))
    grid = np.array(thinned(every[every >= max(at[0] for at, _ in known)]))
    values = np.array([np.interp(grid, at, measured) for at, measured in known])
    table = np.round([grid, values.mean(0), values.min(0), values.max(0)], 6).T.tolist()
    if len(known) == 1:
        return [Point(line, x, mean, panel=panel) for x, mean, _, _ in table]
    return [Point(line, x, mean, low, high, panel=panel) for x, mean, low, high in table]


def accuracy_over(over: Over, runs: Mapping[Line, Sequence[Sequence[Row]]]) -> Figure:
    """The accuracy of the runs of some lines, seed by seed, over rounds or seconds."""
    found = {line: curve(each, "accuracy", over, line.name) for line, each in runs.items()}
    points = [point for each in found.values() for point in each]
    x = Axis(AXES[over], domain=(0, max((p.x for p in points), default=1.0)))
    return Figure([Lines(points, [*found], x, Axis(AXES["accuracy"]), height=260)])


def _places(rows: Sequence[Row], over: Over) -> list[float]:
    if over == "seconds":  # those of rounds, without the time between them
        return [round(at, 4) for at in accumulate(row.seconds for row in rows)]
    return [float(getattr(row, over) or 0.0) for row in rows]


def explained(
    runs: Traces, lines: Sequence[Line], asked: int, devices: Sequence[str] = ()
) -> list[Section]:
    """What explains results, as far as it is known: rounds, who takes part, voice and waste."""
    rounds, heard = swimlanes(runs), voice(runs, lines)
    found = []
    if rounds is not None:
        found.append(Section("A few rounds", [Chart(rounds, text("explained.lanes")), *devices]))
    took_part = Chart(participation(runs, asked), text("explained.part", asked=asked))
    found.append(Section("Who takes part, and how far", [took_part, reach(runs)]))
    if heard is not None:
        heading = "Voice: whose gradients the model is made of"
        found.append(Section(heading, [Chart(heard, text("explained.voice"))]))
    if any(run.history.rows[0].work for each in runs.values() for run in each):
        found.append(Section("Waste", [Chart(waste(runs), text("explained.waste"))]))
    return found


def participation(runs: Traces, asked: int) -> Figure:
    """How many of the users asked finished, were stopped on the way, or delivered nothing."""
    parts = []
    for each in runs.values():
        reached = [row.reached for run in each for row in run.history.rows]
        full, some = np.minimum(1, np.mean([[row[0], row[-1]] for row in reached], 0) / asked)
        parts.append([full, some - full, 1 - some])
    kinds = [Line("all layers", FULL), Line("some layers", SOME), Line("no layer", GREY)]
    y = Axis("Users of a round, on average", percent=True, domain=(0, 1))
    return Figure([Bars([*runs], kinds, np.round(parts, 4).T.tolist(), y, stacked=True)])


def reach(runs: Traces) -> Table:
    """How many users updated each layer: mean over rounds and seeds."""
    rows = []
    for label, each in runs.items():
        counts = np.mean([row.reached for run in each for row in run.history.rows], axis=0)
        layers = names.layers(each[0].summary.get("layers") or [""] * len(counts))
        row = dict(zip(layers, (f"{count:.1f}" for count in counts), strict=True))
        rows.append({"Method": label} | row)
        if last := each[0].history.rows[-1].unreached:  # p_l is known of live rounds
            chances = dict(zip(layers, (f"{p:.2g}" for p in last), strict=True))
            rows.append({"Method": "p_l: nobody reaches it"} | chances)
    return Table.of(rows, "Users that reached each layer")


def waste(runs: Traces) -> Figure:
    """The parts of all work and bytes that are in no update."""
    clocked = [[Clocked.of(run.history, None) for run in each] for each in runs.values()]
    parts = [np.mean([[c.lost_work, c.lost_bytes] for c in each], axis=0) for each in clocked]
    lines, y = [Line("work", FULL), Line("bytes", SOME)], Axis("Lost", percent=True)
    return Figure([Bars([*runs], lines, np.round(parts, 4).T.tolist(), y)])


def swimlanes(runs: Traces) -> Figure | None:
    """A few rounds of a method with a deadline, and of one that waits, if these are known."""
    charts: dict[bool, Lanes] = {}
    by_salf = sorted(runs.items(), key=lambda each: each[1][0].summary.get("method") != "salf")
    for label, (first, *_) in by_salf:
        if found := first.summary.get("lanes"):
            kinds = [LINKS, *layer_lines(names.layers(first.summary["layers"]), "layer"), UNUSED]
            charts.setdefault(found[0]["deadline"] is None, Lanes(f"{label}, ", kinds, found))
    return Figure([*charts.values()]) if charts else None


def layer_lines(layers: Sequence[str], what: str) -> list[Line]:
    """A line for each layer, in the colours of an order."""
    return [
        Line(f"{what} {label}", c) for label, c in zip(layers, ordered(len(layers)), strict=True)
    ]


def voice(runs: Traces, lines: Sequence[Line]) -> Figure | None:
    """The weight of each class beside its part of the data, and of each user, sorted."""
    users, parts = dict[str, list[float]](), dict[str, list[list[float]]]()
    for label in {line.name for line in lines} & runs.keys():
        said = [found for run in runs[label] if (found := run.summary.get("voice"))]
        if len(said) == len(runs[label]):
            ranked = np.mean([sorted(one["users"]) for one in said], axis=0)
            users[label] = np.round(ranked * len(ranked), 4).tolist()
            both = ([one[name] for one in said] for name in ("classes", "data"))
            parts[label] = [np.mean(each, axis=0).round(5).tolist() for each in both]
    if not users:
        return None
    classes, data = ({label: each[i] for label, each in parts.items()} for i in (0, 1))
    shown = [line for line in lines if line.name in users]
    return Figure([Voices(shown, users, classes, next(iter(data.values())))])
