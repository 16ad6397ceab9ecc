"""Worlds make arrivals; what they make is looked at before a method weighs it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from salf.arrivals import Arrivals
from salf.depth import Mixture, fixed
from salf.errors import SalfError
from salf.worlds import AtDeadline, Finishing, Late, Recorded, World, parse

RNG = np.random.default_rng


@dataclass(frozen=True)
class Given(World):
    """Makes what it is given."""

    made: Arrivals
    users: int = 3
    layers: int = 2

    def arrivals(self, t, rng, memory):
        return self.made, memory

    def unreached(self, t):
        return np.zeros(self.layers)


GOOD = Arrivals.at(np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Arrivals.at(np.array([1, 2])), "must give 3 users an entry in depth"),
        (replace(GOOD, age=np.zeros(2, int)), "must give 3 users an entry in age"),
        (Arrivals.at(np.array([0, 1, 2])), "depths from 1 to 3, not 0 to 2"),
        (Arrivals.at(np.array([1, 2, 4])), "depths from 1 to 3, not 1 to 4"),
        (replace(GOOD, age=np.array([0, 0, 5])), "ages from 0 to 4 in round 5, not 0 to 5"),
        (replace(GOOD, age=np.array([0, 0, -1])), "ages from 0 to 4 in round 5"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(made, said):
    world = Given(made)
    with pytest.raises(SalfError, match=said):
        world.checked(made, 5)


def test_arrivals_that_can_be_pass():
    assert Given(GOOD).checked(GOOD, 1) is GOOD


def test_when_the_server_waits_all_finish_and_stragglers_stay_known():
    arrived, _ = Finishing(AtDeadline(fixed([1, 2, 3], layers=2))).arrivals(1, RNG(0), np.empty(0))
    assert arrived.depth.tolist() == [1, 1, 1]
    assert arrived.straggler.tolist() == [False, True, True]


def test_a_late_user_is_busy_for_delay_times_its_depth_then_delivers_on_the_old_model():
    world = Late(fixed([1, 2], layers=2), delay=2)  # user 2: a straggler of depth 2, busy 4 rounds
    memory, seen = world.start(), []
    for t in range(1, 7):
        arrived, memory = world.arrivals(t, RNG(t), memory)
        seen.append((arrived.depth.tolist(), arrived.age.tolist()))
        assert world.models_in_use(memory) == ({1} if t < 5 else {5})
    assert seen[:4] == [([1, 3], [0, 0])] * 4
    assert seen[4] == ([1, 1], [0, 4])  # round 5: on round 1's model
    assert seen[5] == ([1, 3], [0, 0])  # and it started again in round 5


def test_a_record_is_replayed_round_by_round_also_for_methods_that_wait():
    record = Recorded(
        [np.array([1, 3]), np.array([2, 1])], [np.zeros(2), np.array([0.5, 0.0])], [1, 2]
    )
    assert record.waiting() is record
    arrived, _ = record.arrivals(1, RNG(0), record.start())
    assert (arrived.depth.tolist(), arrived.asked) == ([1, 3], 1)
    assert record.unreached(2).tolist() == [0.5, 0.0]
    with pytest.raises(SalfError, match="does not say how late"):
        record.late(2)


def test_a_name_of_depth_makes_the_law_s_world():
    world = parse("mixture", users=10, layers=3, ratio=0.5)
    assert isinstance(world, AtDeadline)
    ours, _ = world.arrivals(1, RNG(4), world.start())
    theirs = Mixture(10, 3, 0.5).draw(RNG(4))
    np.testing.assert_array_equal(ours.depth, theirs.depth)
