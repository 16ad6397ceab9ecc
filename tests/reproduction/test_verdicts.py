"""From checks to the verdict on a claim, and the sentence that says why."""

import pytest

from reproduction.verdicts import Check, Verdict, judge, of_a_part

HOLDS, IN_PART, FAILS, UNDECIDED, NOT_TESTED = Verdict
YES, NO, OPEN = Check("a is 1", True), Check("b is 2", False), Check("c is 3", None)
LOW = Check("d is 4", None, 0.01)


@pytest.mark.parametrize(
    ("checks", "verdict", "reason"),
    [
        ([YES, YES], HOLDS, "A is 1; a is 1."),
        ([YES] * 9, HOLDS, "9 of 9 checks passed."),
        ([YES, NO], IN_PART, "1 of 2 checks passed. Failed: b is 2."),
        ([NO, NO], FAILS, "Failed: b is 2; b is 2."),
        ([OPEN], UNDECIDED, "Inconclusive: c is 3."),
        ([OPEN, YES], IN_PART, None),
        ([OPEN, NO], FAILS, None),
        # A p-value fails a check after division by the number of tests.
        ([LOW], FAILS, None),
        ([LOW, Check("b", None, 0.5)], FAILS, None),
        ([LOW, *[Check("b", None, 0.5)] * 2], UNDECIDED, None),
        # What has no p-value is no test, and what passed is one.
        ([LOW, *[OPEN] * 9], FAILS, None),
        ([LOW, *[Check("b", True, 0.9)] * 2], IN_PART, None),
        (
            [Check(f"x{i}", None, 0.9 - i / 10) for i in range(9)],
            UNDECIDED,
            "Inconclusive, the least likely first: x8; x7; x6; x5; x4; x3; and 3 more.",
        ),
    ],
)
def test_checks_make_a_verdict_and_a_reason(checks, verdict, reason):
    found = judge("c", checks)
    assert found.verdict is verdict
    assert reason in (None, found.reason)


def test_notes_are_told_and_why_not_only_where_something_failed():
    told = judge("c", [Check("a", None, 0.001)], "N.", why_not="W.").reason
    assert told == "Failed: a. W. N."
    assert judge("c", [Check("a", None, 0.5)], "N.", why_not="W.").reason == "Inconclusive: a. N."


def test_a_part_makes_no_claim_about_the_whole_hold_or_fail():
    assert of_a_part(judge("c", [YES]), "Half of it.").verdict is IN_PART
    assert of_a_part(judge("c", [YES]), "Half of it.").reason == "Half of it. A is 1."
    assert of_a_part(judge("c", [NO]), "Half of it.").verdict is UNDECIDED
    in_part = judge("c", [NO, YES])
    assert of_a_part(in_part, "Half of it.") == in_part


def test_a_claim_without_checks_was_not_tested_and_never_holds():
    found = judge("c", [], untested="VGG-19 was not run")
    assert (found.verdict, found.reason) == (NOT_TESTED, "VGG-19 was not run.")
