"""FedNova against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from quadratic import after, recorded, simulation

from salf.core.arrivals import Arrivals
from salf.methods import method

# Three local steps; one complete, and of the second the layers from 2 on; two complete.
ARRIVED = Arrivals(np.array([1, 2, 1]), steps=np.array([3, 2, 2]), planned=np.array([3, 3, 3]))
# tau is (3, 1, 2) in layer 1, so tau_eff = 2; (3, 2, 2) in layer 2, so tau_eff = 7/3.
WEIGHTS = [[2 / 9, 2 / 3, 1 / 3], [7 / 27, 7 / 18, 7 / 18]]


def test_the_weights_are_tau_eff_over_tau_in_every_layer():
    found = method("fednova").weights(ARRIVED, np.zeros(2))
    np.testing.assert_allclose(found, WEIGHTS, rtol=1e-15)


def test_users_weighed_by_their_samples_are_in_both_means():
    """Users 0 and 1 alone, with 1 and 3 samples. Layer 1: tau_eff = 3/4 + 3/4."""
    pair = Arrivals(np.array([1, 2]), steps=np.array([3, 2]), planned=np.array([3, 3]))
    found = method("fednova").weights(replace(pair, weight=np.array([1.0, 3.0])), np.zeros(2))
    np.testing.assert_allclose(found[0], [1 / 4 * 1.5 / 3, 3 / 4 * 1.5 / 1], rtol=1e-15)
    np.testing.assert_allclose(found[1], [1 / 4 * 2.25 / 3, 3 / 4 * 2.25 / 2], rtol=1e-15)


def test_a_round_of_two_users():
    """Rate 0.5, w = 0. User 0 (a = 1): 2 steps, G = -1 - 0.5. User 1 (a = 4): 1 step, G = -4.

    tau_eff = 1.5, so w = 0.5 * 1.5 * (0.75 + 4) / 2 = 1.78125; FedAvg has 0.5 * 5.5 / 2.
    """
    world = recorded([1, 2], [2, 2])  # of one layer: depth 2 has nothing of the second step
    for engine in ("loop", "stacked"):
        sim = simulation("fednova", [1.0, 4.0], world, 0.5, 2, engine)
        assert after(sim, 1) == pytest.approx([1.78125], abs=1e-15)


def test_users_with_more_steps_do_not_pull_the_fixed_point_to_their_side():
    """F_u = (w - a_u)^2 / 2 with a = 1 and 3: the mean of the losses is least at 2.

    With 10 and 1 local steps, the fixed point of the mean of updates is about (10 + 3) / 11.
    """
    ends = {
        name: after(simulation(name, [1.0, 3.0], recorded([1, 2], [10, 2]), 0.01, 10), 120)[-1]
        for name in ("fednova", "salf")
    }
    assert ends["fednova"] == pytest.approx(2, abs=0.05)
    assert ends["salf"] == pytest.approx(13 / 11, abs=0.05)
