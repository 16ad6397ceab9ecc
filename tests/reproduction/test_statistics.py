import pytest
from scipy import stats

from reproduction.statistics import against, drawn, paired, signed
from salf.common.intervals import interval


def test_a_difference_is_written_with_its_sign():
    assert signed(interval([-0.01, -0.03])) == "−0.020 ±0.127"
    assert signed(interval([0.01, 0.03])) == "+0.020 ±0.127"


def test_no_interval_of_an_accuracy_is_drawn_beyond_0_and_1():
    assert drawn(interval([0.9, 0.1])) == {"mean": 0.5, "low": 0.0, "high": 1.0}


def test_differences_are_by_seed_and_equal_ones_are_equal():
    assert paired([0.489, 0.69], [0.5, 0.7]) == [-0.011, -0.01]
    assert set(paired([0.3, 0.7, 1.1], [0.2, 0.6, 1.0])) == {0.1}
    with pytest.raises(ValueError, match="zip"):
        paired([0.1], [0.1, 0.2])


def test_the_p_value_is_that_of_the_one_sided_test_of_the_nearer_bound():
    values = [0.01, 0.03, -0.01, 0.02]
    below = stats.ttest_1samp(values, 0.05, alternative="less").pvalue
    above = stats.ttest_1samp(values, -0.02, alternative="greater").pvalue
    assert against(values, least=0.05) == pytest.approx(below)
    assert against(values, most=-0.02) == pytest.approx(above)
    assert against(values, -0.1, 0.0) == pytest.approx(
        stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
    )
    assert against(values, least=-0.5) > 0.99  # nothing against it
    assert against([0.5], least=1.0) is None


def test_values_that_are_all_the_same_leave_no_doubt():
    assert against([0.01, 0.01], least=0.01) == 1.0
    assert against([0.01, 0.01], least=0.011) == 0.0
