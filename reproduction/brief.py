"""The paper's claims in brief: by topic, with one verdict for each topic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reproduction.comparisons import CONVENTIONS
from reproduction.texts import TEXTS
from reproduction.verdicts import Finding, Verdict


@dataclass(frozen=True)
class Topic:
    """Some claims of the paper in one sentence, the verdict on all of them, and the reason."""

    says: str
    verdict: Verdict
    reason: str


def topics(findings: Iterable[Finding]) -> list[Topic]:
    """The topics on which there is a finding."""
    findings = list(findings)
    found = []
    for texts in TEXTS["page"]["topics"]:
        on_topic = [finding for finding in findings if finding.about in texts["claims"]]
        if on_topic:
            reason = " ".join([*_by_average(on_topic), _checks(on_topic), *_why(texts, on_topic)])
            found.append(Topic(texts["says"], combined(on_topic), reason))
    return found


def combined(findings: Iterable[Finding]) -> Verdict:
    """One verdict on several claims. Those not tested do not count unless there are no others."""
    verdicts = {finding.verdict for finding in findings}
    tested = verdicts - {Verdict.NOT_TESTED}
    if len(tested) <= 1:
        return next(iter(tested or verdicts))
    if tested == {Verdict.FAILS, Verdict.UNDECIDED}:
        return Verdict.FAILS
    return Verdict.IN_PART


def _by_average(findings: Sequence[Finding]) -> list[str]:
    """The verdict for each way of averaging, if they differ."""
    verdicts = {
        average: combined(finding for finding in findings if finding.average == average)
        for average in CONVENTIONS
        if any(finding.average == average for finding in findings)
    }
    if len(set(verdicts.values())) <= 1:
        return []
    return [f"{CONVENTIONS[average]}: {verdict.value}." for average, verdict in verdicts.items()]


def _checks(findings: Sequence[Finding]) -> str:
    passed, failed, unknown = (
        sum(getattr(finding, outcome) for finding in findings)
        for outcome in ("passed", "failed", "unknown")
    )
    total = passed + failed + unknown
    if not total:
        return "Not run at this size."
    told = [f"{passed} of {total} checks pass"]
    told += [f"{failed} fail{'s' * (failed == 1)}"] * bool(failed)
    told += [
        f"{unknown} {'is' if unknown == 1 else 'are'} inconclusive with these seeds and rounds"
    ] * bool(unknown)
    # A run that is not finished caps the verdict: see `of_a_part`.
    parts = any(f.verdict is Verdict.IN_PART and f.passed == _total(f) for f in findings)
    return ", ".join(told) + ("; some runs have only part of the paper's rounds." if parts else ".")


def _total(finding: Finding) -> int:
    return finding.passed + finding.failed + finding.unknown


def _why(texts: dict[str, str], findings: Sequence[Finding]) -> list[str]:
    """The known reasons, where a check failed."""
    failed = [finding for finding in findings if finding.failed]
    keys = ["why"] * bool(failed)
    keys += [f"why_{each}" for each in CONVENTIONS if any(f.average == each for f in failed)]
    return [texts[key] for key in keys if key in texts]
