"""Means and their 95 % intervals."""

import pytest

from salf.common.intervals import Interval, interval


def test_an_interval_by_hand():
    # Mean 3, sample variance 2.5, t(4) = 2.776: 2.776 * sqrt(2.5 / 5) = 1.963.
    found = interval([1, 2, 3, 4, 5])
    assert found.mean == 3
    assert found.half == pytest.approx(1.9632, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((1.0368, 4.9632), abs=1e-4)


def test_one_value_has_no_interval_and_equal_ones_an_empty_one():
    assert interval([0.5]) == Interval(0.5, None)
    assert str(interval([0.1, 0.1, 0.1])) == "0.100 ±0.000"
