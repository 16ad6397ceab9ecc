"""How often users take part: FedAU's intervals against a naive count, and reach."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salf.stages.participation import MEMORY, PRIOR, Participation


def naive_interval(history, cutoff):
    """FedAU's rule, user by user: the mean of the intervals so far, 1 without any."""
    intervals, away = [], 0
    for took_part in history:
        away += 1
        if took_part or away == cutoff:
            intervals.append(away)
            away = 0
    return sum(intervals) / len(intervals) if intervals else 1.0


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30),
    st.integers(1, 6),
)
def test_intervals_are_fedaus(history, cutoff):
    known = Participation(2, cutoff)
    for a1, a2, b in history:
        known.learn(["a", "b"], np.array([[a1, b], [a2, b]]))
    found = known.intervals(["b", "a"])
    columns = list(zip(*history, strict=True)) or [(), (), ()]
    wanted = [[naive_interval(columns[2], cutoff), naive_interval(columns[0], cutoff)]]
    wanted += [[naive_interval(columns[2], cutoff), naive_interval(columns[1], cutoff)]]
    assert found == pytest.approx(np.array(wanted))


def test_only_rounds_in_which_a_user_was_asked_count():
    known = Participation(1, 50)
    for t in range(6):
        known.learn([7], np.array([[t == 5]]))
        known.learn([8], np.array([[True]]))
    assert known.intervals([7, 8, 9]).tolist() == [[6.0, 1.0, 1.0]]


def test_reach_begins_at_one_and_goes_to_the_share_of_rounds():
    known = Participation(1, 50)
    assert known.reach([1, 2]).tolist() == [[1.0, 1.0]]
    rng = np.random.default_rng(0)
    for _ in range(2000):
        known.learn([1, 2], rng.random((1, 2)) < np.array([[0.9, 0.1]]))
    # The last 1/(1 - MEMORY) rounds count: the standard deviation is 0.3 / sqrt(2 / (1 - MEMORY)).
    assert known.reach([1, 2])[0] == pytest.approx([0.9, 0.1], abs=4 * 0.3 * (0.01 / 2) ** 0.5)


def test_strangers_are_like_the_others():
    known = Participation(1, 50)
    for _ in range(3):
        known.learn([1, 2], np.array([[True, False]]))
    rounds = 1 + MEMORY + MEMORY**2
    assert known.reach([3])[0, 0] == pytest.approx((rounds + PRIOR) / (2 * rounds + PRIOR))


def test_a_checkpoint_goes_on():
    known, again = Participation(2, 5), Participation(2, 5)
    known.learn(["a", "b"], np.array([[True, False], [True, True]]))
    again.load_state(*known.state())
    for each in (known, again):
        each.learn(["b", "c"], np.array([[False, False], [True, True]]))
    assert np.array_equal(known.reach("abc"), again.reach("abc"))
    assert np.array_equal(known.intervals("abc"), again.intervals("abc"))
