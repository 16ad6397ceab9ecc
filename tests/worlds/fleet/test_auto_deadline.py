"""`--deadline auto`: it meets its target, follows devices that change, and never runs away."""

import numpy as np
import pytest
from by_hand import timing as three
from by_hand import timing_of

from salf.core.draws import Keyed
from salf.worlds.fleet.availability import Intervals
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import Auto
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.world import TMAX, OnFleet, deadline_for

LAYERS = 3
COST = Cost(np.array([2e4, 1e3, 2e2]), np.array([2e4, 2e3, 4e2]), np.array([1e5, 2e3, 7e2]))


def timing(fleet):
    return timing_of(fleet, COST, rows=16)


def followed(fleet, target, rounds, start=1.0, seed=0):
    """The reach and the deadline of every round, from `start` times the deadline it begins with."""
    world = OnFleet(timing(fleet), Auto(target))
    memory, users = world.start(), np.arange(len(fleet))
    memory[TMAX] *= start
    reach, deadlines = [], []
    for t in range(1, rounds + 1):
        deadlines.append(float(memory[TMAX]))
        arrived, memory = world.arrivals(t, Keyed(seed, t), users, memory)
        reach.append(arrived.mean_reach(LAYERS))
    return np.array(reach), np.array(deadlines)


@pytest.mark.parametrize("start", [0.1, 10.0])
@pytest.mark.parametrize("target", [0.5, 0.9])
@pytest.mark.parametrize("name", ["phones", "slow-classes"])
def test_it_meets_its_target_wherever_it_starts(name, target, start):
    fleet = Fleet(name, 30, seed=1)
    reach, deadlines = followed(fleet, target, 300, start)
    assert reach[100:].mean() == pytest.approx(target, abs=0.01)
    assert np.median(deadlines[100:]) == pytest.approx(
        deadline_for(timing(fleet), target), rel=0.05
    )


def test_a_deadline_that_nobody_needs_is_cut_at_once():
    _, deadlines = followed(Fleet("pis", 30, seed=1), 0.7, 2, start=1000)
    assert deadlines[1] < deadlines[0] / 50


def test_it_follows_devices_that_become_less_available():
    """All the time for 40 s, then 1 s of every 3 s: the same reach takes about 3 times as long."""
    on = [(0.0, 40.0), *((t, t + 1.0) for t in np.arange(42.0, 3000.0, 3.0))]
    fleet = Fleet.of(np.full(20, 1e6), jitter=0.3)
    changing = fleet.available(Intervals(dict.fromkeys(range(20), on)))
    reach, deadlines = followed(changing, 0.7, 300)
    usual = deadline_for(timing(fleet), 0.7)
    early = int(30 / usual)
    assert early >= 20
    assert deadlines[early - 10 : early].mean() == pytest.approx(usual, rel=0.15)
    assert 1.5 * usual < deadlines[-100:].mean() < 5 * usual
    assert reach[-150:].mean() == pytest.approx(0.7, abs=0.05)


def test_it_does_not_run_away_when_the_target_is_out_of_reach():
    """Half of the devices are gone for good after 5 s, so no deadline gives 0.7."""
    fleet = Fleet.of(np.full(20, 1e6), jitter=0.3)
    gone = {device: [(0.0, 5.0 if device < 10 else 1e9)] for device in range(20)}
    reach, deadlines = followed(fleet.available(Intervals(gone)), 0.7, 2000)
    assert reach[-100:].mean() == pytest.approx(0.5)
    assert deadlines.max() < 20 * deadlines[0]


def test_the_deadline_of_three_users_by_hand():
    """Of six layers by 1 s two are done, by 1.2 s three, by 2 s four, by 3 s five, by 5 s six."""
    for share, seconds in ((2, 1.0), (3, 1.2), (4, 2.0), (5, 3.0), (6, 5.0)):
        assert deadline_for(three(), share / 6 - 0.01) == pytest.approx(seconds)


def test_the_first_deadline_is_that_of_devices_while_they_are_available():
    away = Intervals({0: [(100.0, 101.0)], 1: [(0.0, 1.0)], 2: [(5.0, 6.0)]})
    assert deadline_for(three(availability=away), 0.6) == deadline_for(three(), 0.6)
