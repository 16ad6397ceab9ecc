from reproduction.verdicts import Check, Verdict, judge, of_a_part


def test_a_claim_holds_if_all_checks_passed():
    found = judge("c", [Check("a is 1", True), Check("b is 2", True)])
    assert found.verdict is Verdict.HOLDS
    assert found.reason == "A is 1; b is 2."


def test_a_claim_holds_in_part_and_the_reason_is_what_failed():
    found = judge("c", [Check("a is 1", True), Check("b is 2", False)], "Because of c.")
    assert found.verdict is Verdict.IN_PART
    assert found.reason == "1 of 2 checks passed. Failed: b is 2. Because of c."


def test_a_claim_none_of_whose_checks_passed_does_not_hold():
    found = judge("c", [Check("a is 1", False), Check("b is 2", False)])
    assert found.verdict is Verdict.FAILS
    assert found.reason == "Failed: a is 1; b is 2."


def test_what_cannot_be_told_neither_holds_nor_fails():
    assert judge("c", [Check("a", None)]).verdict is Verdict.UNDECIDED
    assert judge("c", [Check("a", None)]).reason == "Inconclusive: a."
    assert judge("c", [Check("a", None), Check("b", True)]).verdict is Verdict.IN_PART
    assert judge("c", [Check("a", None), Check("b", False)]).verdict is Verdict.FAILS


def test_a_p_value_fails_a_check_after_division_by_the_number_of_tests():
    low = Check("a", None, 0.01)
    assert judge("c", [low]).verdict is Verdict.FAILS
    assert judge("c", [low, Check("b", None, 0.5)]).verdict is Verdict.FAILS
    assert judge("c", [low, *[Check("b", None, 0.5)] * 2]).verdict is Verdict.UNDECIDED
    # What has no p-value is no test, and what passed is one.
    assert judge("c", [low, *[Check("b", None)] * 9]).verdict is Verdict.FAILS
    assert "Failed" not in judge("c", [low, *[Check("b", True, 0.9)] * 2]).reason


def test_why_not_is_told_only_where_something_failed():
    told = judge("c", [Check("a", None, 0.001)], "N.", why_not="W.").reason
    assert told == "Failed: a. W. N."
    assert judge("c", [Check("a", None, 0.5)], "N.", why_not="W.").reason == "Inconclusive: a. N."


def test_of_many_checks_that_cannot_be_told_the_least_likely_are_shown():
    told = judge("c", [Check(f"x{i}", None, 0.9 - i / 10) for i in range(9)]).reason
    assert told == "Inconclusive, the least likely first: x8; x7; x6; x5; x4; x3; and 3 more."


def test_a_part_makes_no_claim_about_the_whole_hold_or_fail():
    holds = judge("c", [Check("a", True)])
    assert of_a_part(holds, "Half of it.").verdict is Verdict.IN_PART
    assert of_a_part(holds, "Half of it.").reason == "Half of it. A."
    fails = judge("c", [Check("a", False)])
    assert of_a_part(fails, "Half of it.").verdict is Verdict.UNDECIDED
    in_part = judge("c", [Check("a", False), Check("b", True)])
    assert of_a_part(in_part, "Half of it.") == in_part


def test_a_claim_without_checks_was_not_tested_and_never_holds():
    found = judge("c", [], untested="VGG-19 was not run")
    assert found.verdict is Verdict.NOT_TESTED
    assert found.reason == "VGG-19 was not run."


def test_many_checks_that_passed_are_counted_not_listed():
    assert judge("c", [Check("x", True)] * 9).reason == "9 of 9 checks passed."
