"""What a device learns about the time its stages take, and what it expects of the next round."""

import random
import weakref

import pytest

from devices import prepared
from salf.core.deadline.times import StageTimes


def test_a_device_that_slows_down_is_noticed_in_the_same_round():
    """The forward pass was slow, so the layers will be: no round ends late, not even the first."""
    _, backpropagation, device, loss = prepared(costs={3: 1.0, 2: 2.0, 1: 4.0})
    for _ in range(20):
        assert backpropagation.within(13.0, loss).depth == 1
    device.speed = 0.5  # layer 1 would begin at 8 and end at 16, and was over in 4 until now
    for _ in range(40):
        partial = backpropagation.within(13.0, loss)
        assert (partial.depth, partial.total) == (2, 8.0)


def test_a_hiccup_is_not_taken_for_a_slow_device():
    """A late forward pass, by its share of the round, need not mean late layers."""
    _, backpropagation, device, loss = prepared(costs={3: 10.0, 2: 10.0, 1: 10.0})
    backpropagation.within(None, loss)
    device.forward = 10.0
    assert backpropagation.within(60.0, loss).depth == 1


def test_the_way_back_to_the_caller_counts_too():
    """Letting go of the graph takes time, and the deadline is when the caller has its gradients."""
    _, backpropagation, device, loss = prepared()

    def heavy():
        value = loss()
        weakref.finalize(value, device.wait, 1.0)
        return value

    assert backpropagation.within(None, heavy).total == 5.0
    assert backpropagation.within(5.0, heavy).depth == 1
    partial = backpropagation.within(4.9, heavy)
    assert (partial.depth, partial.total) == (2, 4.0)
    assert backpropagation.within(2.9, heavy).loss is None  # no time for 1 + 1 and the way back


def test_layers_that_are_no_longer_reached_follow_the_speed_of_those_that_are():
    """Slow for long, then fast again: the layer that was given up is reached again soon."""
    _, backpropagation, device, loss = prepared(costs={3: 1.0, 2: 2.0, 1: 6.0})
    backpropagation.within(None, loss)
    device.speed = 0.25
    assert all(backpropagation.within(17.0, loss).depth == 2 for _ in range(50))
    assert backpropagation.times.usual(1) == pytest.approx(24.0 * 0.995**50)
    device.speed = 1.0
    assert any(backpropagation.within(17.0, loss).depth == 1 for _ in range(10))
    assert all(backpropagation.within(17.0, loss).depth == 1 for _ in range(20))


def test_a_first_round_that_was_slow_by_accident_does_not_keep_the_user_from_going_deeper():
    """A layer seen once, and badly, is tried again although no round reaches it by itself."""
    _, backpropagation, device, loss = prepared(costs={3: 1.0, 2: 1.0, 1: 10.0})
    backpropagation.within(None, loss)
    device.costs[1] = 1.0
    depths = [backpropagation.within(6.0, loss).depth for _ in range(300)]
    assert depths[:50] == [2] * 50
    assert depths[-1] == 1


def test_expected_times_are_high_but_not_the_highest_of_the_last_rounds():
    times = StageTimes(1)
    for second in range(1, 21):
        times.learn({0: float(second), 1: 1.0, 2: 0.0})
    assert times.expected(0, pace=1.0) == 17.0
    assert times.expected(0, pace=2.0) == 24.0  # twice the median
    assert times.expected(1, pace=1.0) == 1.0


def test_one_slow_last_layer_does_not_end_a_user_that_runs_it_seldom():
    times = StageTimes(1)
    for _ in range(16):
        times.learn({0: 10.0, 1: 1.0, 2: 0.0})
    for _ in range(30):
        times.learn({0: 10.0})
    times.learn({0: 10.0, 1: 50.0, 2: 0.0})
    assert times.chance(12.0) > 0.9


def test_a_few_slow_passes_say_less_about_the_next_than_many():
    few, many = StageTimes(1), StageTimes(1)
    for second in (10.0, 12.0, 14.0):
        few.learn({0: second, 1: 0.0, 2: 0.0})
    for second in (10.0, 12.0, 14.0) * 10:
        many.learn({0: second, 1: 0.0, 2: 0.0})
    assert few.chance(9.0) > 3 * many.chance(9.0)
    assert few.chance(9.0) > 0.05


def test_passes_that_are_far_too_long_do_not_make_a_short_one_likely():
    times = StageTimes(1)
    for number in range(32):
        times.learn({0: 100.0 if number % 4 == 0 else 10.0 + number / 32, 1: 0.0, 2: 0.0})
    assert times.chance(7.0) < 0.1


def test_the_chance_is_right_for_times_of_which_one_in_ten_fits():
    """On average over 200 devices; of log-normal times with a spread of 0.3."""
    rng, chances = random.Random(0), []
    for _ in range(200):
        times = StageTimes(1)
        for _ in range(32):
            times.learn({0: rng.lognormvariate(0, 0.3), 1: 0.0, 2: 0.0})
        chances.append(times.chance(0.681))  # exp(-1.28 * 0.3)
    assert sum(chances) / len(chances) == pytest.approx(0.1, abs=0.03)
    assert min(chances) > 0.01


def test_old_passes_are_forgotten_but_for_a_few():
    times = StageTimes(1)
    for _ in range(32):
        times.learn({0: 50.0, 1: 1.0, 2: 0.0})
    for _ in range(100):
        times.learn({})
    assert len(times.seen[0]) == len(times.ages) == 8
    times.learn({0: 5.0, 1: 1.0, 2: 0.0})
    assert times.chance(10.0) >= 1 / 8


def test_the_time_of_a_pass_that_was_stopped_is_that_of_the_whole_pass():
    times = StageTimes(1)
    times.learn_course([0.0, 1.0, 3.0], 4.0)
    assert times.whole_pass([0.0, 2.0, 6.0], 6.0) == 8.0
    assert times.whole_pass([0.0, 2.0], 2.0) == 8.0
    assert times.whole_pass([0.0, 2.0, 6.0, 7.0], 7.0) == 7.0  # no pass had so many modules
    assert StageTimes(1).whole_pass([3.0], 3.0) == 3.0
