from salf.reproduction.verdicts import Check, Verdict, judge


def test_a_claim_holds_if_all_checks_passed():
    found = judge("c", [Check("a is 1", True), Check("b is 2", True)])
    assert found.verdict is Verdict.HOLDS
    assert found.reason == "A is 1; b is 2."


def test_a_claim_holds_in_part_and_the_reason_is_what_failed():
    found = judge("c", [Check("a is 1", True), Check("b is 2", False)], "Because of c.")
    assert found.verdict is Verdict.IN_PART
    assert found.reason == "1 of 2 checks passed. Not so: b is 2. Because of c."


def test_a_claim_none_of_whose_checks_passed_does_not_hold():
    found = judge("c", [Check("a is 1", False), Check("b is 2", False)])
    assert found.verdict is Verdict.FAILS
    assert found.reason == "A is 1; b is 2."


def test_a_claim_without_checks_was_not_tested_and_never_holds():
    found = judge("c", [], untested="VGG-19 was not run")
    assert found.verdict is Verdict.NOT_TESTED
    assert found.reason == "VGG-19 was not run."


def test_many_checks_that_passed_are_counted_not_listed():
    assert judge("c", [Check("x", True)] * 9).reason == "All 9 checks passed."
