"""A mean over a few seeds and its 95 % interval (Student's t)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import mean, stdev

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

    @property
    def signed(self) -> str:
        """As a difference is written: `−0.007 ±0.012`."""
        return str(self).replace("-", "−") if self.mean < 0 else f"+{self}"

    def drawn(self) -> dict[str, float]:
        """Of an accuracy, for a figure: the part from 0 to 1 of the interval, if there is one."""
        ends = {"low": max(self.low, 0.0), "high": min(self.high, 1.0)}
        shown = {"mean": self.mean, **(ends if self.half is not None else {})}
        return {name: round(value, 5) for name, value in shown.items()}


def over_seeds(seeds: int) -> str:
    """What is shown of so many seeds."""
    return f"mean of {seeds} seeds and its 95 % interval" if seeds > 1 else "one seed"


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent values, at least one."""
    centre = mean(values)  # exact, unlike fmean: of equal values it is that value
    if len(values) < 2:
        return Interval(centre, None)
    return Interval(centre, student_t(len(values) - 1) * stdev(values) / sqrt(len(values)))


@cache
def student_t(freedom: int) -> float:
    """The t that a Student variable exceeds in absolute value with chance 1 - CONFIDENCE."""
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7).

    scipy has it too, but a table of results should not need scipy.
    """
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2 == 1
    term, total = (cos(angle) if odd else 1.0), 0.0
    for k in range(2 if not odd else 3, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
