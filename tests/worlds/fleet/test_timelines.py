"""Timelines of three users, worked out by hand, for every rule by which a round ends."""

import by_hand
import numpy as np
import pytest
from by_hand import COST, EVERYBODY, HALF, SPEEDS, rounds, timing, timing_of, world

from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.methods import method
from salf.worlds.fleet.availability import Intervals
from salf.worlds.fleet.cost import Cost, equal_time
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.devices import MULTIPLY_ADDS, DeviceClass, Fleet
from salf.worlds.fleet.jitter import ExponentialLayers, LogNormal


@pytest.fixture(autouse=True, params=[MULTIPLY_ADDS, HALF], ids=["rows", "launches"])
def kind(request, monkeypatch):
    monkeypatch.setattr(by_hand, "CLASSES", [request.param])
    return request.param


def test_a_round_ends_at_its_deadline_and_who_is_done_just_then_is_in_time():
    (first, second), memory = rounds(world(2.0), 2)
    assert first.depth.tolist() == [1, 1, 3]  # user 1 is done after 2 s exactly
    assert first.straggler.tolist() == [False, False, True]
    assert (first.spent.seconds, first.spent.clock) == (2.0, 2.0)
    assert second.spent.clock == 4.0
    assert memory[0, 0] == 4.0


def test_a_user_that_is_cut_off_has_its_last_layers():
    ((arrived,), _) = rounds(world(3.5), 1)
    assert arrived.depth.tolist() == [1, 1, 2]
    ((arrived,), _) = rounds(world(4.0, rows=2), 1)  # larger batches take longer
    assert arrived.depth.tolist() == [1, 1, 3]


def test_a_round_ends_early_when_all_are_there():
    ((arrived,), _) = rounds(world(7.0), 1)
    assert arrived.depth.tolist() == [1, 1, 1]
    assert arrived.spent.seconds == 5.0
    assert arrived.spent.waited.tolist() == [4.0, 3.0, 0.0]


def test_what_is_done_by_the_deadline_and_what_of_it_counts():
    ((arrived,), _) = rounds(world(2.0), 1)
    assert arrived.spent.work.tolist() == [5.0, 5.0, 2.0]  # user 2: 2 s at speed 1
    assert arrived.spent.counted.tolist() == [5.0, 5.0, 0.0]
    assert arrived.spent.waited.tolist() == [1.0, 0.0, 0.0]
    # 30 bytes down each, and up what was reached.
    assert arrived.spent.bytes.tolist() == [60.0, 60.0, 30.0]
    ((late,), _) = rounds(world(4.0), 1)
    assert late.spent.work.tolist() == [5.0, 5.0, 4.0]
    assert late.spent.counted.tolist() == [5.0, 5.0, 3.0]
    assert late.spent.bytes.tolist() == [60.0, 60.0, 40.0]


def test_fedavg_ends_with_the_slowest():
    waiting = method("fedavg").world(world(2.0))
    (first, second), _ = rounds(waiting, 2)
    assert first.depth.tolist() == [1, 1, 1]
    assert (first.spent.seconds, second.spent.clock) == (5.0, 10.0)
    assert first.spent.waited.tolist() == [4.0, 3.0, 0.0]
    assert waiting.unreached(1, EVERYBODY, waiting.start()).tolist() == [0, 0]


def test_fedavg_needs_no_deadline_and_others_say_that_they_do():
    (first,), _ = rounds(method("fedavg").world(world(None)), 1)
    assert first.spent.seconds == 5.0
    with pytest.raises(SalfError, match="this method needs a deadline"):
        rounds(world(None), 1)


def test_a_schedule_gives_each_round_its_deadline():
    arrived, memory = rounds(world(DeadlineSchedule((0.5, 1.0, 3.0))), 4)
    assert [a.depth.tolist() for a in arrived] == [[3, 3, 3], [1, 3, 3], [1, 1, 2], [1, 1, 2]]
    assert memory[0, 0] == 7.5


def test_local_steps_take_their_time_and_a_user_is_stopped_in_one_of_them():
    """Two steps: done after 2, 4 and 10 s. After 3.5 s user 1 is in its second, past layer 2."""
    ((arrived,), _) = rounds(world(3.5, steps=2), 1)
    assert arrived.steps.tolist() == [2, 2, 1]
    assert arrived.depth.tolist() == [1, 2, 2]
    assert arrived.finished.tolist() == [True, False, False]
    ((later,), _) = rounds(world(5.5, steps=2), 1)
    assert (later.steps.tolist(), later.depth.tolist()) == ([2, 2, 1], [1, 1, 1])
    assert later.finished.tolist() == [True, True, False]


def test_what_was_reached_must_be_uploaded_by_the_deadline():
    """Up 20 bytes/s: layer 2 takes 0.5 s, both 1.5 s. Down 60 bytes/s: 0.5 s. Latency 0.1 twice.

    User 0 has uploaded layer 2 after 0.7 + 0.6 + 0.5 = 1.8 s and all after 0.7 + 1 + 1.5 = 3.2 s;
    user 1 after 2.4 and 4.2 s.
    """
    links = {"up": 20.0, "down": 60.0, "latency": 0.1}
    for deadline, depths in (
        (1.7, [3, 3, 3]),
        (2.0, [2, 3, 3]),
        (2.5, [2, 2, 3]),
        (3.5, [1, 2, 3]),
    ):
        ((arrived,), _) = rounds(world(deadline, **links), 1)
        assert arrived.depth.tolist() == depths, deadline
    ((all_done,), _) = rounds(method("fedavg").world(world(None, **links)), 1)
    assert all_done.spent.seconds == pytest.approx(0.7 + 5 + 1.5)


def test_a_device_pauses_while_it_is_not_available():
    """User 0 is away from 0.5 to 1.5 s, so it is done after 2 s; user 1 comes after 1 s, at 3."""
    away = Intervals({0: [(0, 0.5), (1.5, 100)], 1: [(1, 100)], 2: [(0, 100)]})
    ((arrived,), _) = rounds(world(2.5, availability=away), 1)
    assert arrived.depth.tolist() == [1, 2, 3]
    (first, second), _ = rounds(method("fedavg").world(world(None, availability=away)), 2)
    assert (first.spent.seconds, second.spent.clock) == (5.0, 10.0)
    chances = world(2.5, availability=away)
    assert chances.reach(1, EVERYBODY, chances.start()).tolist() == [[1, 0, 0], [1, 1, 0]]


def test_waiting_for_a_user_that_never_comes_back_is_refused():
    gone = Intervals({0: [(0, 100)], 1: [(0, 100)], 2: [(0, 2)]})
    with pytest.raises(SalfError, match="never available again"):
        rounds(method("fedavg").world(world(None, availability=gone)), 1)


def test_asyncfl_on_the_clock_delivers_in_the_round_in_which_a_user_is_done():
    """Deadline 2: user 2 begins in round 1 and is done after 5 s, in round 3, two rounds later."""
    late = method("asyncfl").world(world(2.0))
    arrived, memory = rounds(late, 4)
    assert [a.user.tolist() for a in arrived] == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert [a.depth.tolist() for a in arrived] == [[1, 1, 3], [1, 1], [1, 1, 1], [1, 1, 3]]
    assert arrived[2].age.tolist() == [0, 0, 2]
    assert [a.spent.clock for a in arrived] == [2.0, 4.0, 6.0, 8.0]
    # Begun again in round 4, at 6 s.
    assert memory[:, 3].tolist() == [4.0, 11.0]
    assert late.busy(5, memory).tolist() == [2]
    assert late.models_in_use(memory) == {4}


def test_the_model_of_a_user_that_never_comes_back_is_not_kept():
    gone = Intervals({0: [(0, 100)], 1: [(0, 100)], 2: [(0, 2)]})
    late = method("asyncfl").world(world(2.0, availability=gone))
    _, memory = rounds(late, 3)
    assert late.busy(4, memory).tolist() == [2]
    assert late.models_in_use(memory) == set()


def test_asyncfl_ends_a_round_early_when_all_who_are_at_work_have_delivered():
    arrived, _ = rounds(method("asyncfl").world(world(9.0)), 2)
    assert [a.spent.clock for a in arrived] == [5.0, 10.0]


def test_a_buffer_takes_a_step_after_so_many_updates_in_the_order_of_their_times():
    """Users are done every 1, 2 and 5 s. At 2 s, users 0 and 1 tie: the lower number is first."""
    arrived, _ = rounds(method("asyncfl", buffer=1).world(world(2.0)), 4)
    delivered = [a.user[a.depth == 1].tolist() for a in arrived]
    assert delivered == [[0], [0], [1], [0]]
    assert [a.spent.clock for a in arrived] == [1.0, 2.0, 2.0, 3.0]
    # User 1 was given the model of step 1 and delivers in step 3; user 0 begins in step 3 at 2 s.
    assert [a.age[a.depth == 1].tolist() for a in arrived] == [[0], [0], [2], [1]]


def test_a_buffer_of_two_waits_for_the_second():
    arrived, _ = rounds(method("asyncfl", buffer=2).world(world(2.0)), 3)
    assert [a.user[a.depth == 1].tolist() for a in arrived] == [[0, 1], [0, 1], [0, 2]]
    assert [a.spent.clock for a in arrived] == [2.0, 4.0, 5.0]
    assert arrived[2].age[arrived[2].depth == 1].tolist() == [0, 2]


def test_a_cohort_keeps_as_many_users_at_work():
    buffered = method("asyncfl", buffer=1).world(world(2.0))
    memory = buffered.start()
    for t in range(1, 20):
        arrived, memory = buffered.arrivals(t, Keyed(0, t), np.array([0, 2]), memory)
        assert len(buffered.busy(t, memory)) == 1  # of two at work one has delivered
        assert (arrived.depth == 1).sum() == 1


def test_heterofl_gives_slow_devices_a_narrow_network_and_loses_those_who_are_late_all_the_same():
    """A quarter of the work: user 1 is done after 0.5 s, user 2 after 1.25 s."""
    narrow = Cost(*COST.multiply_adds / 4, COST.bytes / 4, products=COST.products / 4)

    def of_width(width):
        return timing_of(timing().devices, narrow)

    for deadline, depths, slow, seconds in (
        (1.5, [1, 1, 1], [False, True, True], 1.25),
        (1.2, [1, 1, 3], [False, True, True], 1.2),
        (2.0, [1, 1, 1], [False, False, True], 2.0),
    ):
        ((arrived,), _) = rounds(method("heterofl").world(world(deadline, of_width)), 1)
        assert arrived.depth.tolist() == depths
        assert arrived.straggler.tolist() == slow
        assert arrived.spent.seconds == seconds
    assert arrived.spent.work.tolist() == [5.0, 5.0, 1.25]


def test_nobody_asked_takes_the_whole_round():
    ((arrived,), memory) = rounds(world(2.0), 1, users=EVERYBODY[:0])
    assert (arrived.users, memory[0, 0]) == (0, 2.0)


def test_times_are_a_function_of_seed_user_and_round():
    times = timing(jitter=LogNormal(0.3))
    alone = times.round(Keyed(7, 5), np.array([1]), 0.0).done
    others = times.round(Keyed(7, 5), EVERYBODY, 100.0).done
    np.testing.assert_array_equal(alone[0], others[1])
    assert not np.array_equal(times.round(Keyed(7, 6), EVERYBODY, 0.0).done, others)
    assert not np.array_equal(times.round(Keyed(8, 5), EVERYBODY, 0.0).done, others)
    np.testing.assert_array_equal(times.round(Keyed(7, 5), EVERYBODY, 0.0).done, others)


def test_users_may_be_in_any_order():
    times = timing(jitter=LogNormal(0.3))
    in_order = times.round(Keyed(7, 5), EVERYBODY, 0.0).done
    reversed_ = times.round(Keyed(7, 5), EVERYBODY[::-1].copy(), 0.0).done
    np.testing.assert_array_equal(reversed_, in_order[::-1])
    reach = times.reach(EVERYBODY, 0.0, 2.0)
    np.testing.assert_array_equal(times.reach(EVERYBODY[::-1].copy(), 0.0, 2.0), reach[:, ::-1])


def test_chances_without_a_closed_form_are_simulated():
    """Stages of 0.6 and 0.4 s in the mean: the sum of two exponential times of different means.

    All users are alike but for their speed; 0.035 is 4.5 standard errors.
    """
    times = timing(jitter=ExponentialLayers())
    for speed, user in ((5.0, 0), (1.0, 2)):
        reach = times.reach(EVERYBODY, 0.0, 1.5 * 5 / speed)
        a, b, x = 1 / 0.6, 1 / 0.4, 1.5
        both = 1 - (b * np.exp(-a * x) - a * np.exp(-b * x)) / (b - a)
        assert reach[1, user] == pytest.approx(1 - np.exp(-a * x), abs=0.035)
        assert reach[0, user] == pytest.approx(both, abs=0.035)


def test_layers_of_1_and_9_ns_do_not_take_equally_long():
    short = np.array([[1e-9, 9e-9]])
    assert ExponentialLayers().chance(short, np.full((1, 2), 1e-9), np.arange(1)) is None


def test_equal_time_batches_take_all_users_as_long():
    devices = Fleet.of(SPEEDS)
    # The median device takes 16 x 5 / 2.5 = 32 s; so do 32 rows at speed 5 and 6.4 at speed 1.
    assert equal_time(devices, COST, 16).tolist() == [32, 16, 6]
    # Within 8 s there are 8, 4 and 1.6 rows.
    assert equal_time(devices, COST, 16, seconds=8.0).tolist() == [8, 4, 2]
    assert equal_time(devices, COST, 16, steps=4, seconds=8.0).tolist() == [2, 1, 1]
    fast = Fleet.of([1000.0, 1.0, 1.0])
    assert equal_time(fast, COST, 16).tolist() == [64, 16, 16]  # at most four times as many


def test_equal_time_batches_leave_time_for_the_link():
    """Down and up take 30/60 + 30/20 = 2 s: of 8 s there are 6 left."""
    devices = Fleet.of(SPEEDS, up=20.0, down=60.0)
    assert equal_time(devices, COST, 16, seconds=8.0).tolist() == [6, 3, 1]
    assert equal_time(devices, COST, 16, seconds=1.0).tolist() == [1, 1, 1]


# Seconds: 0.5 a product, 0.01 a parameter and 0.1 a multiply-add, three times as long if depthwise.
PHONE = DeviceClass("typical phones", multiply_add=0.1, launch=0.5, parameter=0.01, depthwise=3)
WITH_LAUNCHES = Cost(
    forward=np.array([1.0, 1.0]),
    backward=np.array([2.0, 1.0]),
    bytes=np.array([20.0, 10.0]),
    large=np.array([[0.0, 1.0], [0.0, 0.0]]),
    depthwise=np.array([[0.0, 0.0], [1.0, 0.0]]),
    products=np.array([[1.0, 1.0], [1.0, 2.0]]),
    trained=np.array([5.0, 2.0]),
)


def test_a_stage_has_a_fixed_part_and_one_for_every_row():
    """Layer 2 with both forward passes: 4 products, 2 parameters; 3 multiply-adds a row.

    Then layer 1: 1 product, 5 parameters; 2 multiply-adds, of which the depthwise one is like 3.
    """
    fixed, row = [2.02, 0.55], [0.3, 0.4]
    devices = Fleet.of([1.0, 0.5, 2.0], counted=PHONE)
    for rows, steps in ((1, 1), (4, 2)):
        once = np.array(fixed) + rows * np.array(row)
        made = timing_of(devices, WITH_LAUNCHES, rows, steps)
        wanted = np.outer(1 / devices.speed, np.cumsum(np.tile(once, steps)))
        np.testing.assert_allclose(made.expected_done(EVERYBODY), wanted)
        assert made.tasks(EVERYBODY).work[0].tolist() == [3.0 * rows, 2.0 * rows] * steps
    # The median device takes 2.57 + 4 x 0.7 = 5.37 s; at half the speed 0.16 rows fit in it.
    assert equal_time(devices, WITH_LAUNCHES, 4).tolist() == [4, 1, 12]
    # In 6 s two steps leave 0.86 s for rows of 1.4 s; at double the speed 6.86 s.
    assert equal_time(devices, WITH_LAUNCHES, 4, steps=2, seconds=6.0).tolist() == [1, 1, 5]


def test_devices_may_be_of_several_classes():
    fleet = Fleet.of([1.0, 10.0, 2.0], counted=[PHONE, MULTIPLY_ADDS, PHONE])
    assert fleet.pace.tolist() == [10, 10, 20]
    assert str(fleet).count("typical phones or multiply-adds per second") == 1
    made = timing_of(fleet, WITH_LAUNCHES)
    np.testing.assert_allclose(made.expected(EVERYBODY), [3.27, 0.5, 3.27 / 2])
    swapped = timing_of(fleet.of_users(np.array([1, 2, 0])), WITH_LAUNCHES)
    np.testing.assert_allclose(swapped.expected(EVERYBODY), [0.5, 3.27 / 2, 3.27])


def test_constants_may_differ_between_passes_and_layers():
    own = DeviceClass(
        "this machine", launch=np.array([[0.1], [0.2]]), multiply_add=np.array([1, 2])
    )
    fixed, row = own.seconds(WITH_LAUNCHES)
    np.testing.assert_allclose(fixed, [[0.1, 0.1], [0.2, 0.4]])
    np.testing.assert_allclose(row, [[1, 2], [2, 2]])
