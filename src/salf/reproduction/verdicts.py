"""From checks to a plain verdict on a claim: holds, holds in part, does not hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What became of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Check:
    """One thing a claim says, and whether it was so."""

    what: str  # with what was measured: "MLP at 90 %: SALF 0.887, Drop 0.862"
    passed: bool


@dataclass(frozen=True)
class Finding:
    """A claim, its verdict, and the reason."""

    claim: str
    verdict: Verdict
    reason: str


def judge(
    claim: str, checks: Sequence[Check], reason: str = "", *, untested: str = "not run"
) -> Finding:
    """A claim holds if all its checks passed, and does not if none did.

    The reason is what failed, each with its numbers, then `reason`: why, as far as it is known.
    Without any checks the claim was not tested, because of `untested`.
    """
    if not checks:
        return Finding(claim, Verdict.NOT_TESTED, _sentence(untested))
    failed = [check for check in checks if not check.passed]
    if not failed:
        verdict, counted = Verdict.HOLDS, _counted(checks)
    elif len(failed) < len(checks):
        verdict = Verdict.IN_PART
        told = "; ".join(check.what for check in failed)
        counted = f"{len(checks) - len(failed)} of {len(checks)} checks passed. Not so: {told}."
    else:
        verdict, counted = Verdict.FAILS, _sentence("; ".join(check.what for check in failed))
    return Finding(claim, verdict, " ".join(filter(None, [counted, reason])))


def _counted(checks: Sequence[Check]) -> str:
    if len(checks) <= 4:
        return _sentence("; ".join(check.what for check in checks))
    return f"All {len(checks)} checks passed."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
