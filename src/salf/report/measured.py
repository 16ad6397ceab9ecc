"""Numbers of a comparison over its seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev

from salf.report.tables import NONE
from salf.runs.compare import Case, Comparison


def seeds(comparison: Comparison) -> int:
    """How many runs a case has."""
    return max(len(results) for results in comparison.results.values())


def at_end(comparison: Comparison) -> str:
    """What is measured at the end: accuracy, or loss where there are no classes."""
    runs = [run.history for results in comparison.results.values() for run in results]
    known = any(run.curve or run.test_accuracy is not None for run in runs)
    return "accuracy" if known or not comparison.base.fleet else "loss"


def tested(comparison: Comparison, case: Case) -> dict[int, float]:
    """The measure at the end on test data, by place of the run."""
    measure = at_end(comparison)
    found = [run.history.test.get(measure) for run in comparison.results[case]]
    return {place: value for place, value in enumerate(found) if value is not None}


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean and standard deviation: `0.896 ±0.002`, without the latter for a single value."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    sd = f" ±{stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{fmean(known):.{digits}f}{sd}"
