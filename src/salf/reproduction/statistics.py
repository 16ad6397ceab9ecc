"""What can be said of a few seeds: means, their 95 % intervals, and paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % interval (Student's t), which one value has not."""

    mean: float
    half: float | None

    @property
    def low(self) -> float:
        """The lower end; the mean itself where there is no interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end; the mean itself where there is no interval."""
        return self.mean + (self.half or 0.0)

    def __str__(self) -> str:
        """As in a table: `0.887 ±0.004`."""
        return f"{self.mean:.3f}" + ("" if self.half is None else f" ±{self.half:.3f}")


def over_seeds(seeds: int) -> str:
    """What is shown of so many seeds."""
    return f"mean of {seeds} seeds and its 95 % interval" if seeds > 1 else "one seed"


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent values, at least one."""
    if len(values) < 2:
        return Interval(fmean(values), None)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Interval(fmean(values), t * stdev(values) / sqrt(len(values)))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of the mean of ours - theirs, seed by seed: both saw the same data, batches and depths."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)])


def at_least(ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0) -> bool:
    """Whether ours + margin >= theirs, up to what the seeds can tell apart."""
    return difference(ours, theirs).high + margin >= 0
