"""From checks to a plain verdict on a claim: holds, holds in part, does not hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

SHOWN = 6  # checks that cannot be told, of many


class Verdict(Enum):
    """What became of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Check:
    """One thing a claim says, and whether it was so; None if what was run cannot tell."""

    what: str  # with what was measured: "MLP at 90 %: SALF 0.887, Drop 0.862"
    passed: bool | None


@dataclass(frozen=True)
class Finding:
    """A claim, its verdict, and the reason. Claims that are not the paper's are marked `ours`."""

    claim: str
    verdict: Verdict
    reason: str
    ours: bool = False


def judge(
    claim: str,
    checks: Sequence[Check],
    reason: str = "",
    *,
    untested: str = "not run",
    ours: bool = False,
) -> Finding:
    """A claim holds if all its checks passed, and does not if some failed and none passed.

    A claim of which nothing could be told was not tested; otherwise it holds in part. The reason
    is what failed and what could not be told, each with its numbers, then `reason`: why, as far
    as it is known. Without any checks the claim was not tested, because of `untested`.
    """
    if not checks:
        return Finding(claim, Verdict.NOT_TESTED, _sentence(untested), ours)
    passed, failed, unknown = (
        [check.what for check in checks if check.passed is outcome]
        for outcome in (True, False, None)
    )
    if passed:
        verdict = Verdict.IN_PART if failed or unknown else Verdict.HOLDS
    else:
        verdict = Verdict.FAILS if failed else Verdict.NOT_TESTED
    told = []
    if verdict is Verdict.HOLDS and len(checks) <= 4:
        told.append(_sentence("; ".join(passed)))
    elif passed:
        told.append(f"{len(passed)} of {len(checks)} checks passed.")
    if failed:
        told.append(f"Not so: {'; '.join(failed)}.")
    if unknown:
        more = f"; and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        told.append(f"Cannot be told: {'; '.join(unknown[:SHOWN])}{more}.")
    return Finding(claim, verdict, " ".join(filter(None, [*told, reason])), ours)


def of_a_part(finding: Finding, why: str) -> Finding:
    """Where only a part was run, what holds holds in part, and what does not may yet."""
    capped = {Verdict.HOLDS: Verdict.IN_PART, Verdict.FAILS: Verdict.NOT_TESTED}
    verdict = capped.get(finding.verdict)
    if verdict is None:
        return finding
    return replace(finding, verdict=verdict, reason=f"{why} {finding.reason}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
