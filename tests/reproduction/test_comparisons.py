"""The rule by which methods are compared, on numbers made up by hand."""

import pytest
from scipy import stats

from reproduction.comparisons import (
    Scores,
    as_good,
    better,
    between,
    far_apart,
    within_the_interval,
)
from reproduction.verdicts import Verdict, judge

WIDE = (-0.1, 0.0, 0.1)


def ours(*seeds):
    return Scores("SALF", seeds)


def theirs(*seeds):
    return Scores("Drop", seeds)


def verdict(*checks):
    return judge("c", checks).verdict


def test_a_mean_that_is_above_by_luck_does_not_pass():
    """0.05 above on average, but seeds differ by 0.2: neither as good nor better can be told."""
    lucky = ours(0.85, 0.95, 1.05), theirs(1.0, 0.9, 0.8)
    for compare in (as_good, better):
        check = compare(*lucky)
        assert check.passed is None
        assert verdict(check) is Verdict.UNDECIDED


def test_means_that_are_alike_in_every_seed_are_as_good_and_not_better():
    alike = ours(0.5, 0.7, 0.9), theirs(0.5, 0.7, 0.9)
    assert verdict(better(ours(0.9001, 0.8901), theirs(0.9, 0.89))) is Verdict.UNDECIDED  # by luck
    assert as_good(*alike).passed is True
    assert (better(*alike).passed, better(*alike).against) == (None, 0.0)
    assert verdict(better(*alike)) is Verdict.FAILS


def test_seeds_are_paired():
    """Always 0.01 apart, however far the seeds are from each other."""
    low, high = (0.49, 0.69, 0.8905), (0.5, 0.7, 0.9)
    assert verdict(as_good(ours(*low), theirs(*high))) is Verdict.FAILS
    assert verdict(better(ours(*high), theirs(*low))) is Verdict.HOLDS
    assert verdict(better(ours(*high), theirs(*low[1:], low[0]))) is Verdict.UNDECIDED


def test_the_margin_counts_both_ways():
    above = ours(0.851, 0.85, 0.849), theirs(0.801, 0.8, 0.8)
    assert better(*above, margin=0.04).passed is True
    assert verdict(better(*above, margin=0.06)) is Verdict.FAILS
    below = theirs(*above[1].seeds), ours(*above[0].seeds)
    assert as_good(*below, margin=0.06).passed is True
    assert verdict(as_good(*below, margin=0.04)) is Verdict.FAILS


def test_of_a_loss_less_is_better_and_the_method_said_to_be_good_comes_first():
    losses = ours(0.1, 0.101, 0.099), theirs(0.2, 0.2, 0.201)
    assert better(*losses, less=True).passed is True
    assert verdict(better(*losses)) is Verdict.FAILS
    assert "SALF 0.100, Drop 0.200 (−0.100 ±0.004)" in better(*losses, less=True).what
    assert better(Scores("SALF", None), losses[1], less=True).passed is False


@pytest.mark.parametrize("compare", [as_good, better, within_the_interval])
def test_one_seed_tells_nothing(compare):
    for pair in ((ours(0.9), theirs(0.1)), (ours(0.1), theirs(0.9))):
        check = compare(*pair)
        assert (check.passed, check.against) == (None, None)
        assert verdict(check) is Verdict.UNDECIDED
    assert verdict(between("x", [0.5], 0.0, 1.0)) is Verdict.UNDECIDED


def test_of_many_checks_one_is_significantly_below_only_before_the_correction():
    """p = 0.0135 one-sided: enough alone, not among ten."""
    low = as_good(ours(0.88, 0.89, 0.9), theirs(0.93, 0.928, 0.93))
    difference = stats.ttest_1samp([-0.05, -0.038, -0.03], -0.005, alternative="less")
    assert low.against == pytest.approx(difference.pvalue)
    assert 0.0025 < low.against < 0.025
    fine = as_good(ours(0.9, 0.91, 0.92), theirs(0.9, 0.91, 0.92))
    assert verdict(low) is Verdict.FAILS
    assert "Failed" in judge("c", [low, *[fine] * 0]).reason
    many = judge("c", [low, *[fine] * 9])
    assert many.verdict is Verdict.IN_PART
    assert "Failed" not in many.reason
    assert "Inconclusive: SALF 0.890, Drop 0.929" in many.reason
    assert verdict(low, *[as_good(ours(*WIDE), theirs(0.0, 0.0, 0.0))] * 9) is Verdict.UNDECIDED


def test_within_the_interval_passes_unless_the_seeds_tell_otherwise():
    assert within_the_interval(ours(0.5, 0.7, 0.9), theirs(0.6, 0.65, 0.91)).passed is True
    below = within_the_interval(ours(0.489, 0.69, 0.8905), theirs(0.5, 0.7, 0.9))
    assert below.passed is None
    assert verdict(below) is Verdict.FAILS


def test_a_range_is_passed_by_a_whole_interval_and_failed_on_either_side():
    assert verdict(between("x", [0.14, 0.15, 0.16], 0.1, 0.2)) is Verdict.HOLDS
    assert verdict(between("x", [0.1, 0.15, 0.2], 0.1, 0.2)) is Verdict.UNDECIDED
    assert verdict(between("x", [0.3, 0.31, 0.32], 0.1, 0.2)) is Verdict.FAILS
    assert verdict(between("x", [0.01, 0.02, 0.03], 0.1, 0.2)) is Verdict.FAILS


def test_training_that_diverged_speaks_against_the_method_said_to_be_good_only():
    gone = Scores("SALF", None)
    for compare in (as_good, better, within_the_interval):
        assert compare(gone, theirs(0.5, 0.6), "at the end").passed is False
        assert compare(theirs(0.5, 0.6), gone).passed is None
        assert compare(gone, gone).what == "SALF: training diverged"


def test_seeds_far_apart_are_listed():
    assert far_apart("CNN", [0.9, 0.7]) == ""
    assert far_apart("CNN", [0.914, 0.921, 0.359]).startswith("CNN: 0.914, 0.921 and 0.359.")
