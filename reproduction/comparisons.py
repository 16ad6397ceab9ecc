"""Methods beside each other, seed by seed, and what can be said where some of them diverged."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nextafter
from statistics import fmean

from reproduction.statistics import against, paired, signed
from reproduction.verdicts import Check
from salf.common.intervals import Interval, interval
from salf.report import names

# How a layer is averaged, as the beginning of a claim.
CONVENTIONS = {"reached": "As the equations say", "all": "As published"}
# The same as the heading of a panel, in two lines.
HEADINGS = {
    "reached": "As the equations say:\naveraged over the users that reached a layer",
    "all": "As published:\naveraged over all users",
}
TIE = 0.005  # less cannot be seen in the paper's two digits
ABOVE_ZERO = nextafter(0.0, inf)
FAR_APART = 0.2  # of seeds further apart than this, the mean says little


@dataclass(frozen=True)
class Scores:
    """One number per seed of something with a name; None if one of its runs diverged."""

    name: str
    seeds: Sequence[float] | None

    @classmethod
    def mean(cls, name: str, parts: Sequence[Sequence[float] | None]) -> "Scores":
        """The mean of several numbers, seed by seed."""
        known = [part for part in parts if part is not None]
        whole = bool(known) and len(known) == len(parts)
        return cls(name, [fmean(seed) for seed in zip(*known, strict=True)] if whole else None)

    def __str__(self) -> str:
        """`SALF 0.887 ±0.004`, as in a sentence."""
        return f"{self.name} –" if self.seeds is None else f"{self.name} {interval(self.seeds)}"


def between(what: str, values: Sequence[float], least: float = -inf, most: float = inf) -> Check:
    """Whether the mean of values, one per seed, is in [least, most].

    It passes if the whole 95 % interval is there, and else has the p-value to fail by. One seed
    tells nothing, nor do two that happen to agree: accuracies are shares of so many images.
    """
    if len(values) == 2 and values[0] == values[1] != 0:
        return Check(what, None)
    found = interval(values)
    passed = found.half is not None and least <= found.low and found.high <= most
    return Check(what, passed or None, against(values, least, most))


def as_good(
    ours: Scores, theirs: Scores, where: str = "", *, margin: float = TIE, less: bool = False
) -> Check:
    """Whether ours >= theirs - margin, in the mean over the seeds of their difference.

    The margin is what cannot be seen in the paper's two digits, if no other is given. With
    `less`, of a loss or a distance, ours <= theirs + margin.
    """
    return _compare(ours, theirs, where, -margin, less=less)


def better(
    ours: Scores, theirs: Scores, where: str = "", *, margin: float = 0.0, less: bool = False
) -> Check:
    """Whether ours > theirs + margin, in the mean over the seeds of their difference.

    With `less`, of a loss or a distance, ours < theirs - margin.
    """
    # Methods that are alike in every seed are not above each other.
    return _compare(ours, theirs, where, nextafter(margin, inf), less=less)


def within_the_interval(ours: Scores, theirs: Scores, where: str = "") -> Check:
    """Whether ours >= theirs, up to what the seeds can tell apart. One seed tells nothing."""
    if ours.seeds is None or theirs.seeds is None:
        return _diverged(ours, theirs, where)
    gains = paired(ours.seeds, theirs.seeds)
    found = interval(gains)
    passed = found.half is not None and found.high >= 0
    return Check(_beside(ours, theirs, where, found), passed or None, against(gains, least=0.0))


def one_seed(seeds: int) -> str:
    """A note on numbers that rest on one seed."""
    return "" if seeds > 1 else "One seed; others may differ."


def far_apart(name: str, seeds: Sequence[float]) -> str:
    """A sentence with all seeds, if they are so far apart that their mean says little."""
    if round(max(seeds) - min(seeds), 12) <= FAR_APART:
        return ""
    listed = names.listed([f"{seed:.3f}" for seed in seeds])
    return f"{name}: {listed}. More than {FAR_APART} apart: some seeds train far worse than others."


def _compare(ours: Scores, theirs: Scores, where: str, least: float, *, less: bool) -> Check:
    if ours.seeds is None or theirs.seeds is None:
        return _diverged(ours, theirs, where)
    apart = paired(ours.seeds, theirs.seeds)
    gains = [-each for each in apart] if less else apart
    return between(_beside(ours, theirs, where, interval(apart)), gains, least)


def _diverged(ours: Scores, theirs: Scores, where: str) -> Check:
    """Training that diverged speaks against a method that is said to be good."""
    against_it = ours.seeds is None
    name = ours.name if against_it else theirs.name
    told = f"{where}: {name}" if where else name
    return Check(f"{told}: training diverged", False if against_it else None)


def _beside(ours: Scores, theirs: Scores, where: str, apart: Interval) -> str:
    """Both means, and what is judged: their difference, seed by seed."""
    means = ", ".join(f"{each.name} {fmean(each.seeds or [0.0]):.3f}" for each in (ours, theirs))
    told = f"{means} ({signed(apart)})" if apart.half is not None else means
    return f"{where}: {told}" if where else told
