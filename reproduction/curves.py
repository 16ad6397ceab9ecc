"""Training runs as curves over the rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reproduction.item import Found, label
from reproduction.statistics import drawn
from salf.common.figures import Axis, Figure, Line, Lines, Point, thinned
from salf.common.intervals import interval
from salf.report import names
from salf.runs.config import Config


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


def points(line: str, seeds: Sequence[Course] | None, panel: str) -> list[Point]:
    """The mean over the seeds in every evaluated round; of a long curve, at equal distances."""
    means = [
        (rounds[0][0], interval([accuracy for _, accuracy in rounds]))
        for rounds in zip(*(course.points for course in seeds or ()), strict=True)
    ]
    return [Point(line, t, **drawn(mean), panel=panel) for t, mean in thinned(means)]


def figure(
    points: Sequence[Point],
    lines: Sequence[Line],
    height: int = 220,
    wrap: int = 4,
    **title: Any,
) -> Figure:
    """Accuracies over the rounds."""
    x = Axis("Round", domain=(0, max((point.x for point in points), default=1)))
    y = Axis("Accuracy on held-out data")
    return Figure([Lines(points, lines, x, y, height=height, wrap=wrap)], **title)


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
