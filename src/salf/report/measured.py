"""Results of a comparison over its seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

from salf.report import names
from salf.runs.compare import Case, Comparison


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (0 for one value), lowest and highest."""

    mean: float
    sd: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """The spread of the values that were measured; None if none was."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        sd = stdev(known) if len(known) > 1 else 0.0
        return cls(fmean(known), sd, min(known), max(known), len(known))

    def __str__(self) -> str:
        """`0.8964 ±0.0021`, without the spread for a single value."""
        return f"{self.mean:.4f}" + (f" ±{self.sd:.4f}" if self.count > 1 else "")


def test_accuracy(comparison: Comparison, case: Case) -> Spread | None:
    """The accuracy at the end; None if the case was not run, or has none."""
    return Spread.of(result.history.test_accuracy for result in comparison.results.get(case, []))


def methods(comparison: Comparison) -> list[str]:
    """The methods in the order they were asked for."""
    return list(dict.fromkeys(case.method for case in comparison.results))


def lines(comparison: Comparison) -> list[tuple[str, str]]:
    """(method, batches), in the order they were asked for: a line of a chart, a row of a table."""
    return list(dict.fromkeys((case.method, case.batches) for case in comparison.results))


def data(comparison: Comparison) -> str:
    """The data set of all runs."""
    several = "data" in swept(comparison)
    return "several data sets" if several else names.data(comparison.base.data)


def swept(comparison: Comparison) -> set[str]:
    """The settings with several values, besides those that every case has."""
    return {name for case in comparison.results for name, _ in case.more}


def ratios(comparison: Comparison) -> list[float]:
    """The ratios of stragglers, from the lowest."""
    return sorted({case.stragglers for case in comparison.results})


def seeds(comparison: Comparison) -> int:
    """How many runs a case has."""
    return max(len(results) for results in comparison.results.values())
