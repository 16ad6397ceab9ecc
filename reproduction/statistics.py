"""Statistics of a few seeds: paired differences, and tests."""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import mean, stdev

from scipy.special import stdtr

from salf.common.intervals import Interval


def paired(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours - theirs, seed by seed: both saw the same data, batches and depths."""
    # Rounded, so that equal differences of decimal numbers are equal.
    return [round(a - b, 12) for a, b in zip(ours, theirs, strict=True)]


def against(values: Sequence[float], least: float = -inf, most: float = inf) -> float | None:
    """The p-value of values whose mean is said to be in [least, most]; one value has none.

    Of the one-sided t-test of the bound that is nearer to being broken. Values that are all the
    same leave no doubt: 0 or 1.
    """
    if len(values) < 2:
        return None
    centre, error = mean(values), stdev(values) / sqrt(len(values))
    if not error:
        return float(least <= centre <= most)
    freedom = len(values) - 1
    below, above = (centre - least) / error, (most - centre) / error
    return float(min(stdtr(freedom, below), stdtr(freedom, above)))


def signed(found: Interval) -> str:
    """A difference as it is written: `−0.007 ±0.012`."""
    return str(found).replace("-", "−") if found.mean < 0 else f"+{found}"


def drawn(found: Interval) -> dict[str, float]:
    """An accuracy for a figure: its mean, and the interval clipped to 0..1 if there is one."""
    ends = {"low": max(found.low, 0.0), "high": min(found.high, 1.0)}
    shown = {"mean": found.mean, **(ends if found.half is not None else {})}
    return {name: round(value, 5) for name, value in shown.items()}
