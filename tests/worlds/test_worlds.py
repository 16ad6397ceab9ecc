"""Worlds make arrivals; what they make is looked at before a method weighs it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.worlds.base import AtDeadline, Finishing, Late, Recorded, World
from salf.worlds.depth import fixed


@dataclass(frozen=True)
class Given(World):
    """Makes what it is given."""

    made: Arrivals
    users: int = 3
    layers: int = 2

    def arrivals(self, t, draws, users, memory):
        return self.made, memory

    def unreached(self, t, users, memory):
        return np.zeros(self.layers)


GOOD = Arrivals(np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (replace(GOOD, depth=np.array([1, 2])), "must return depth as an array of shape"),
        (Arrivals(GOOD.depth, user=np.arange(1, 4)), "user from 0 to 2 in round 5, not 1 to 3"),
        (
            Arrivals(GOOD.depth, user=np.arange(3) - 1),
            "user from 0 to 2 in round 5, not -1 to 1",
        ),
        (replace(GOOD, age=np.zeros(2, int)), "must return age as an array of shape"),
        (Arrivals(np.array([0, 1, 2])), "depth from 1 to 3 in round 5, not 0 to 2"),
        (Arrivals(np.array([1, 2, 4])), "depth from 1 to 3 in round 5, not 1 to 4"),
        (replace(GOOD, age=np.array([0, 0, 5])), "age from 0 to 4 in round 5, not 0 to 5"),
        (replace(GOOD, age=np.array([0, 0, -1])), "age from 0 to 4 in round 5"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(made, said):
    world = Given(made)
    with pytest.raises(SalfError, match=said):
        world.checked(made, 5)


def test_arrivals_that_can_be_pass():
    assert Given(GOOD).checked(GOOD, 1) is GOOD


def test_nobody_may_arrive():
    nobody = Arrivals(np.empty(0, np.int64), asked=3)
    assert Given(nobody).checked(nobody, 1) is nobody


def test_when_the_server_waits_all_finish_and_stragglers_stay_known():
    world = Finishing(AtDeadline(fixed([1, 2, 3], layers=2)))
    arrived, _ = world.arrivals(1, Keyed(0, 1), np.arange(3), world.start())
    assert arrived.depth.tolist() == [1, 1, 1]
    assert arrived.straggler.tolist() == [False, True, True]


def test_a_late_user_is_busy_for_delay_times_its_depth_then_delivers_on_the_old_model():
    world = Late(fixed([1, 2], layers=2), delay=2)  # user 1: a straggler of depth 2, busy 4 rounds
    memory, seen = world.start(), []
    for t in range(1, 7):
        assert world.busy(t, memory).tolist() == ([1] if t in (2, 3, 4, 6) else [])
        arrived, memory = world.arrivals(t, Keyed(0, t), np.arange(2), memory)
        assert arrived.asked == 2
        seen.append((arrived.user.tolist(), arrived.depth.tolist(), arrived.age.tolist()))
        assert world.models_in_use(memory) == ({1} if t < 5 else {5})
    assert seen[0] == ([0, 1], [1, 3], [0, 0])
    assert seen[1:4] == [([0], [1], [0])] * 3  # busy: no entry
    assert seen[4] == ([0, 1], [1, 1], [0, 4])  # round 5: on round 1's model
    assert seen[5] == ([0], [1], [0])  # and it started again in round 5


def test_a_late_update_arrives_although_its_user_is_not_asked_again():
    world = Late(fixed([1, 2, 1], layers=2), delay=1)
    arrived, memory = world.arrivals(1, Keyed(0, 1), np.array([1]), world.start())
    assert (arrived.user.tolist(), arrived.depth.tolist()) == ([1], [3])
    arrived, memory = world.arrivals(2, Keyed(0, 2), np.array([0]), memory)
    arrived, memory = world.arrivals(3, Keyed(0, 3), np.array([2]), memory)
    assert arrived.user.tolist() == [1, 2]
    assert arrived.age.tolist() == [2, 0]
    assert arrived.asked == 1
    assert not memory.any()


def test_a_record_is_replayed_round_by_round_also_for_methods_that_wait():
    record = Recorded(
        3,
        [np.array([0, 2]), np.array([1])],
        [np.array([1, 3]), np.array([2])],
        [np.zeros(2), np.array([0.5, 0.0])],
    )
    assert record.waiting() is record
    arrived, _ = record.arrivals(1, Keyed(0, 1), np.arange(3), record.start())
    assert (arrived.user.tolist(), arrived.depth.tolist(), arrived.asked) == ([0, 2], [1, 3], 2)
    assert record.unreached(2, np.arange(3), record.start()).tolist() == [0.5, 0.0]
    with pytest.raises(SalfError, match="does not say how late"):
        record.late(2)
