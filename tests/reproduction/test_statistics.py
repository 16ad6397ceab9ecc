import pytest
from scipy import stats

from salf.reproduction.statistics import at_least, difference, interval


def test_the_interval_is_students():
    values = [0.9, 0.92, 0.88, 0.91]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    found = interval(values)
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)


def test_one_value_has_no_interval():
    found = interval([0.5])
    assert (found.low, found.half, found.high) == (0.5, None, 0.5)
    assert str(found) == "0.500"
    assert "±" in str(interval([0.5, 0.6]))


def test_differences_are_paired_by_seed():
    # The seeds differ much, the methods always by 0.01: only paired can that be seen.
    theirs = [0.5, 0.7, 0.9]
    ours = [0.489, 0.69, 0.8905]
    assert difference(ours, theirs).high < 0
    assert not at_least(ours, theirs)
    assert at_least(ours, theirs, margin=0.02)


def test_what_cannot_be_told_apart_counts_as_at_least():
    assert at_least([0.5, 0.7, 0.9], [0.6, 0.65, 0.91])
    assert at_least([0.5], [0.5])
    assert not at_least([0.49], [0.5])


def test_an_unequal_number_of_seeds_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        difference([0.1], [0.1, 0.2])
