"""Methods beside each other, seed by seed, and what can be said where some of them diverged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from salf.reproduction.statistics import Interval, difference, interval
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


def as_good(ours: Measured, theirs: Measured, where: str = "", margin: float = TIE) -> Check:
    """Whether the mean of ours is that of theirs or above it, up to the margin.

    The margin is what cannot be seen in the paper's two digits, if no other is given. A mean
    further below does not pass, and is not held against the claim if the seeds cannot tell.
    """
    if (gap := _diverged(ours, theirs, where)) is not None:
        return gap
    gain = _gain(ours, theirs)
    if gain.mean >= -margin:
        return Check(_beside(ours, theirs, where), True)
    return _failed(ours, theirs, where, unsure=gain.half is not None and gain.high >= -margin)


def above(ours: Measured, theirs: Measured, where: str = "") -> Check:
    """Whether the mean of ours is above that of theirs, and by more than the paper could show.

    What is closer together has no order.
    """
    if (gap := _diverged(ours, theirs, where)) is not None:
        return gap
    gain = _gain(ours, theirs)
    if gain.mean > TIE:
        return Check(_beside(ours, theirs, where), True)
    tie = gain.mean >= -TIE or (gain.half is not None and gain.high >= 0)
    return _failed(ours, theirs, where, unsure=tie)


def better(
    ours: Measured, theirs: Measured, where: str = "", *, margin: float = 0.0, noise: float = 0.0
) -> Check:
    """Whether ours > theirs + margin, by more than the interval over the seeds.

    One seed has no interval: there `noise` is what it cannot tell apart, both ways; without, it
    can tell nothing but that ours is below.
    """
    if (gap := _diverged(ours, theirs, where)) is not None:
        return gap
    gain = _gain(ours, theirs)
    least = margin + noise if gain.half is None else margin
    if gain.low > least and (gain.half is not None or noise > 0):
        return Check(_beside(ours, theirs, where), True)
    return _failed(ours, theirs, where, unsure=gain.high > 2 * margin - least)


def within_the_interval(ours: Measured, theirs: Measured, where: str = "") -> Check:
    """Whether ours >= theirs, up to what the seeds can tell apart."""
    if (gap := _diverged(ours, theirs, where)) is not None:
        return gap
    return Check(_beside(ours, theirs, where), _gain(ours, theirs).high >= 0)


def conclude(
    claim: str,
    checks: Iterable[Check],
    *,
    why_not: str = "",
    note: str = "",
    untested: str = "not run",
    ours: bool = False,
) -> Finding:
    """Judge a claim. `why_not` is added only where a check failed, `note` always."""
    checks = list(checks)
    failed = any(check.passed is False for check in checks)
    reason = " ".join(filter(None, [why_not if failed else "", note]))
    return judge(claim, checks, reason, untested=untested, ours=ours)


def _gain(ours: Measured, theirs: Measured) -> Interval:
    return difference(ours.seeds or [], theirs.seeds or [])


def _failed(ours: Measured, theirs: Measured, where: str, *, unsure: bool) -> Check:
    told = _beside(ours, theirs, where)
    seeds = len(ours.seeds or [])
    if unsure:
        told += f" (too close for {seeds} seeds)" if seeds > 1 else " (too close for one seed)"
    return Check(told, None if unsure else False)


def _diverged(ours: Measured, theirs: Measured, where: str) -> Check | None:
    """Training that diverged speaks against a method that is said to be good."""
    for measured, passed in ((ours, False), (theirs, None)):
        if measured.seeds is None:
            place = f"{where}: {measured.name}" if where else measured.name
            return Check(f"{place}: training diverged", passed)
    return None


def _beside(ours: Measured, theirs: Measured, where: str) -> str:
    return f"{where}: {ours}, {theirs}" if where else f"{ours}, {theirs}"
