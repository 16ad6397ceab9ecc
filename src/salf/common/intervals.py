"""A mean over a few seeds and its 95 % interval (Student's t)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % interval (Student's t), which one value has not."""

    mean: float
    half: float | None

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half is None else f" ±{self.half:.3f}")

    def signed(self) -> str:
        """A difference, as in `+0.010 ±0.002`."""
        return f"{'+' * (self.mean >= 0)}{self}".replace("-", "−")


def over_seeds(seeds: int) -> str:
    """The words for a mean of so many seeds."""
    return f"mean of {seeds} seeds and its 95 % interval" if seeds > 1 else "one seed"


def interval(values: Sequence[float]) -> Interval:
    """The interval of the mean of independent values, at least one."""
    centre = mean(values)  # exact, unlike fmean: of equal values it is that value
    if len(values) < 2:
        return Interval(centre, None)
    from scipy.special import stdtrit  # slow to import: only where there are several seeds

    t = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return Interval(centre, t * stdev(values) / sqrt(len(values)))
