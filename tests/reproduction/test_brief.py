import pytest

from reproduction.brief import combined, topics
from reproduction.texts import TEXTS, finding
from reproduction.verdicts import Check, Finding, Verdict

GOOD, BAD, OPEN = Check("a", True), Check("b", False), Check("c", None)
HOLDS, IN_PART, FAILS, UNDECIDED, NOT_TESTED = Verdict


def test_every_claim_of_the_paper_is_in_one_topic():
    claims = [
        f"{item}.{name}"
        for item, texts in TEXTS.items()
        for name, text in texts.items()
        if isinstance(text, dict) and "claim" in text and not text.get("ours")
    ]
    listed = [claim for topic in TEXTS["page"]["topics"] for claim in topic["claims"]]
    assert sorted(listed) == sorted(claims)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([HOLDS, NOT_TESTED], HOLDS),
        ([NOT_TESTED], NOT_TESTED),
        ([HOLDS, FAILS], IN_PART),
        ([HOLDS, UNDECIDED], IN_PART),
        ([FAILS, UNDECIDED], FAILS),
        ([UNDECIDED, UNDECIDED], UNDECIDED),
    ],
)
def test_a_topic_holds_only_if_all_its_tested_claims_do(verdicts, expected):
    assert combined(Finding("c", verdict, "r") for verdict in verdicts) is expected


def test_topics_without_findings_are_left_out():
    assert topics([]) == []
    only = topics([finding("table1", "close", [GOOD], model="MLP", close=0.05)])
    assert [topic.verdict for topic in only] == [HOLDS]
    assert only[0].reason == "1 of 1 checks pass."


def test_averages_that_differ_are_told_apart_with_the_reason_of_the_one_that_fails():
    limits = {"dramatic": 0.1, "few": "30 %", "many": "90 %"}
    (topic,) = topics(
        [
            finding("table1", "falls_much", [BAD], "reached", **limits),
            finding("table1", "falls_much", [GOOD, OPEN], "all", **limits),
        ]
    )
    assert topic.verdict is IN_PART
    assert "As the equations say: does not hold. As published: holds in part." in topic.reason
    assert "1 of 3 checks pass, 1 fails, 1 is inconclusive" in topic.reason
    texts = next(t for t in TEXTS["page"]["topics"] if "table1.falls_much" in t["claims"])
    assert topic.reason.endswith(texts["why_reached"])
    assert texts["why_all"] not in topic.reason
