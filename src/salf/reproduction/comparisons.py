"""Methods beside each other, seed by seed, and what can be said where some of them diverged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from salf.report import names
from salf.reproduction.statistics import at_least, difference, interval
from salf.reproduction.verdicts import Check, Finding, judge

# How a layer is averaged, as the beginning of a claim.
CONVENTIONS = {"reached": "As the equations say", "all": "As published"}
# The same as the heading of a panel, in two lines.
HEADINGS = {
    "reached": "As the equations say:\naveraged over the users that reached a layer",
    "all": "As published:\naveraged over all users",
}
TIE = 0.005  # less cannot be seen in the paper's two digits
ONE_SEED = "One seed, so no interval."


@dataclass(frozen=True)
class Measured:
    """One number per seed of something with a name; None if one of its runs diverged."""

    name: str
    seeds: Sequence[float] | None

    def __str__(self) -> str:
        """As in a check: `SALF 0.887 ±0.004`."""
        return f"{self.name} –" if self.seeds is None else f"{self.name} {interval(self.seeds)}"


@dataclass(frozen=True)
class Lacking:
    """What could not be checked, because this has no result."""

    name: str


class Undecided(Check):
    """A check that did not pass, but only because so few seeds cannot tell."""


# What speaks for or against a claim.
Evidence = Check | Lacking


def not_worse(ours: Measured, theirs: Measured, where: str = "", margin: float = 0.0) -> Evidence:
    """Whether ours + margin >= theirs, up to what the seeds can tell apart."""
    if ours.seeds is None or theirs.seeds is None:
        return _lacking(ours, theirs)
    told, passed = _beside(ours, theirs, where), at_least(ours.seeds, theirs.seeds, margin)
    if passed and difference(ours.seeds, theirs.seeds).mean < -margin:
        told += f" (less on average, but not so that {len(ours.seeds)} seeds could tell)"
    return Check(told, passed)


def as_good(ours: Measured, theirs: Measured, where: str = "") -> Evidence:
    """Whether the mean of ours is that of theirs or above it, to the paper's two digits.

    Few seeds must not make a claim hold because they can tell nothing; but what they cannot tell
    is said.
    """
    if ours.seeds is None or theirs.seeds is None:
        return _lacking(ours, theirs)
    told = _beside(ours, theirs, where)
    if difference(ours.seeds, theirs.seeds).mean >= -TIE:
        return Check(told, True)
    if len(ours.seeds) > 1 and at_least(ours.seeds, theirs.seeds):
        return Undecided(f"{told} (not so that {len(ours.seeds)} seeds could tell)", False)
    return Check(told, False)


def better(ours: Measured, theirs: Measured, where: str = "", margin: float = 0.0) -> Evidence:
    """Whether ours > theirs + margin, by more than the interval where there are several seeds."""
    if ours.seeds is None or theirs.seeds is None:
        return _lacking(ours, theirs)
    told, gain = _beside(ours, theirs, where), difference(ours.seeds, theirs.seeds)
    if gain.low > margin:
        return Check(told, True)
    if gain.mean > margin:
        told += f" (more on average, but not so that {len(ours.seeds)} seeds could tell)"
        return Undecided(told, False)
    return Check(told, False)


def conclude(
    claim: str,
    evidence: Iterable[Evidence],
    *,
    why_not: str = "",
    note: str = "",
    untested: str = "not run",
) -> Finding:
    """Judge a claim by the checks there are. The reason names what has no result.

    `why_not` is added only where a check failed that more seeds could not turn, `note` always.
    """
    evidence = list(evidence)
    checks = [found for found in evidence if isinstance(found, Check)]
    lacking = dict.fromkeys(found.name for found in evidence if isinstance(found, Lacking))
    missing = f"No result for {names.listed(list(lacking))}: training diverged" if lacking else ""
    failed = any(not check.passed and not isinstance(check, Undecided) for check in checks)
    parts = [why_not if failed else "", note, f"{missing}." if missing else ""]
    return judge(claim, checks, " ".join(filter(None, parts)), untested=missing or untested)


def _beside(ours: Measured, theirs: Measured, where: str) -> str:
    return f"{where}: {ours}, {theirs}" if where else f"{ours}, {theirs}"


def _lacking(ours: Measured, theirs: Measured) -> Lacking:
    return Lacking(ours.name if ours.seeds is None else theirs.name)
