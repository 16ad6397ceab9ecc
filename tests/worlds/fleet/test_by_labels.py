"""Participation by labels. Errors are below 4.5 standard errors: an error rate below 1e-5."""

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.data.samples import Samples
from salf.data.users_data import Partitioned
from salf.runs.config import Config
from salf.runs.federation import from_config
from salf.worlds.fleet import availability
from salf.worlds.fleet.availability import ByLabels, Slots
from salf.worlds.fleet.devices import Fleet


def test_every_device_is_available_in_its_share_of_the_slots():
    chances, slots = np.array([0.1, 0.5, 1.0]), 20_000
    available = Slots(chances, slot=2.0, seed=3)
    for device, chance in enumerate(chances):
        starts = 2.0 * np.arange(slots)
        now = available.window(np.full(slots, device), starts)[0] == starts
        assert abs(now.mean() - chance) <= 4.5 * np.sqrt(chance * (1 - chance) / slots)


def test_a_window_is_one_slot_and_what_happened_does_not_depend_on_when_it_is_asked():
    available, who = Slots(np.array([0.05]), slot=2.0), np.array([0])
    opens, closes = available.window(who, np.array([0.0]))
    assert closes - opens == 2
    assert opens % 2 == 0
    later, end = available.window(who, opens + 0.5)
    assert (later, end) == (opens + 0.5, closes)
    again, _ = available.window(who, np.array([opens[0] / 2]))
    assert again == opens
    assert available.window(who, closes)[0] >= closes  # a slot that ends now is over


def test_chances_follow_from_the_labels():
    mixes = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    chances = ByLabels(0.1, 1.0, seed=1).of_users(mixes).chances
    assert chances[2] == pytest.approx(0.1)  # who holds all classes alike has the mean
    # The classes' weights sum to 1, so before the least the chances of the two sum to twice that.
    assert max(chances[:2]) == pytest.approx(0.2 - min(chances[:2]), abs=0.02)
    assert chances.min() >= 0.02


def test_the_least_available_count_as_the_slowest():
    fleet = Fleet.of([1.0, 1.0, 5.0], availability=Slots(np.array([0.5, 0.9, 0.1]), 1.0))
    assert fleet.slowest(0.4).tolist() == [2]


def test_label_mixes_are_shares_of_each_users_samples():
    import torch

    samples = Samples(torch.zeros(4, 1), torch.tensor([0, 1, 1, 2]))
    mixes = Partitioned(samples, [np.array([0, 1]), np.array([2, 3])]).label_mixes()
    assert mixes.tolist() == [[0.5, 0.5, 0], [0, 0.5, 0.5]]


@pytest.mark.parametrize("wrong", ["by-labels", "by-labels:0.1", "by-labels:2,1", "by-labels:0,1"])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(SalfError):
        availability.parse(wrong)


def test_without_data_it_says_so():
    with pytest.raises(SalfError, match="depends on the users' data"):
        availability.parse("by-labels:0.1,1").window(np.arange(2), np.zeros(2))[0]


def test_in_a_run_who_holds_what_decides_who_takes_part():
    config = Config(
        data="digits",
        split="dirichlet:0.1",
        users=20,
        fleet="pis:links=none",
        pair="labels",
        availability="by-labels:0.3,1",
        deadline=1.0,
        seconds=200.0,
        rounds=0,
        threads=1,
    )
    training = from_config(config)
    simulation = training.simulation
    chances = simulation.world.timing.devices.availability.chances
    expected = ByLabels(0.3, 1.0, 0).of_users(simulation.data.label_mixes()).chances
    np.testing.assert_array_equal(chances, expected)
    reached = [row.reached[0] for row in training.run(0, 200.0).rows]
    error = np.sqrt((chances * (1 - chances)).sum() / len(reached))
    assert abs(np.mean(reached) - chances.sum()) <= 4.5 * error
