"""From checks to a verdict on a claim: holds, holds in part, does not hold, or inconclusive."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

SHOWN = 6  # inconclusive checks, of many
LEVEL = 0.025  # of all tests of a claim together: what a 95 % interval leaves out on one side


class Verdict(Enum):
    """The verdict on a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    UNDECIDED = "inconclusive"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Check:
    """One thing a claim says, and whether it was so; None if what was run cannot tell.

    `against` is the p-value of what was measured if it is so, where there is one: with None,
    whether the data speak against it depends on how many such tests the claim has.
    """

    what: str  # with what was measured: "MLP at 90 %: SALF 0.887, Drop 0.862"
    passed: bool | None
    against: float | None = None


@dataclass(frozen=True)
class Finding:
    """A claim, its verdict, and the reason. Claims that are not the paper's are marked `ours`."""

    claim: str
    verdict: Verdict
    reason: str
    ours: bool = False
    passed: int = 0  # checks
    failed: int = 0
    unknown: int = 0
    about: str = ""  # its place in texts.toml: "table1.best"
    average: str = ""  # the way of averaging it was judged for, if any


def settled(checks: Iterable[Check]) -> list[Check]:
    """The checks of one claim, with those failed that the data speak against.

    A claim holds only if all its checks passed, so that more checks make it no easier to hold: an
    intersection-union test, which needs no correction. But of many tests one fails by chance, so
    that failing needs one: Bonferroni's.
    """
    checks = list(checks)
    tests = sum(check.against is not None for check in checks)
    return [
        replace(check, passed=False)
        if check.passed is None and check.against is not None and check.against <= LEVEL / tests
        else check
        for check in checks
    ]


def judge(
    claim: str,
    checks: Iterable[Check],
    note: str = "",
    *,
    why_not: str = "",
    untested: str = "not run",
    ours: bool = False,
) -> Finding:
    """A claim holds if all its checks passed, and does not if some failed and none passed.

    If none passed and none failed it is inconclusive; otherwise it holds in part. The reason is
    what failed and what is inconclusive, each with its numbers, then, where something failed,
    `why_not` as far as it is known, and `note`. Without any checks the claim was not tested,
    because of `untested`.
    """
    checks = settled(checks)
    if not checks:
        return Finding(claim, Verdict.NOT_TESTED, _sentence(untested), ours)
    passed, failed, unknown = (
        [check for check in checks if check.passed is outcome] for outcome in (True, False, None)
    )
    told = []
    verdict = _verdict(passed, failed, unknown)
    if verdict is Verdict.HOLDS and len(checks) <= 4:
        told.append(_sentence(_listed(passed)))
    elif passed:
        told.append(f"{len(passed)} of {len(checks)} checks passed.")
    if failed:
        told.append(f"Failed: {_listed(failed)}.")
    if len(unknown) > SHOWN:
        # Of many, those that came nearest to failing: nobody should have to ask for them.
        nearest = sorted(unknown, key=lambda check: -1 if check.against is None else check.against)
        shown, more = _listed(nearest[:SHOWN]), len(unknown) - SHOWN
        told.append(f"Inconclusive, the least likely first: {shown}; and {more} more.")
    elif unknown:
        told.append(f"Inconclusive: {_listed(unknown)}.")
    reasons = [*told, why_not if failed else "", note]
    counts = len(passed), len(failed), len(unknown)
    return Finding(claim, verdict, " ".join(filter(None, reasons)), ours, *counts)


def _listed(checks: Sequence[Check]) -> str:
    return "; ".join(check.what for check in checks)


def _verdict(passed: Sequence[Check], failed: Sequence[Check], unknown: Sequence[Check]) -> Verdict:
    if passed:
        return Verdict.IN_PART if failed or unknown else Verdict.HOLDS
    return Verdict.FAILS if failed else Verdict.UNDECIDED


def noted(finding: Finding, note: str) -> Finding:
    """The finding with a note on what it rests on, if it was tested."""
    if not note or finding.verdict is Verdict.NOT_TESTED:
        return finding
    return replace(finding, reason=f"{finding.reason} {note}")


def of_a_part(finding: Finding, why: str) -> Finding:
    """Where only a part was run, what holds holds in part, and what does not may yet."""
    capped = {Verdict.HOLDS: Verdict.IN_PART, Verdict.FAILS: Verdict.UNDECIDED}
    verdict = capped.get(finding.verdict)
    if verdict is None:
        return finding
    return replace(finding, verdict=verdict, reason=f"{why} {finding.reason}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
