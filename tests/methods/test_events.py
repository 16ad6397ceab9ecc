"""FedBuff, CA2FL and FedAsync against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from quadratic import after, on_fleet, recorded, simulation

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.methods import method

# Users 0 and 1 tie at 2 s and 4 s. With a buffer of 2, users 0 and 1 make the steps at 2 s and 4 s,
# and users 0 and 2 the one at 5 s: user 2 was given the first model, two steps ago.
SECONDS, TARGETS = [1.0, 2.0, 5.0], [1.0, 2.0, 6.0]


def test_fedbuff_is_the_mean_of_discounted_differences():
    """w: 0 -> (1 + 2)/4 -> 0.75 + (0.25 + 1.25)/4 -> 1.125 - (0.125 - 6/sqrt 3)/4, rate 1/2.

    Divided by K = 2. By the sum of s it were 1 + 1/sqrt 3; the wrong K twice were 4.
    """
    sim = simulation("fedbuff", TARGETS, on_fleet(SECONDS), 0.5, buffer=2)
    wanted = [0.75, 1.125, 1.125 - (0.125 - 6 / 3**0.5) / 4]
    assert after(sim, 3) == pytest.approx(wanted, abs=1e-14)
    assert sim.clock == 5.0


def test_fedbuffs_users_step_with_their_rate_and_the_server_with_its_own():
    """As above in round 1: differences of 0.5 * 1 and 0.5 * 2, mean 0.75; eta_g = 0.7."""
    sim = simulation("fedbuff", TARGETS, on_fleet(SECONDS), 0.7, client_rate=0.5, buffer=2)
    assert after(sim, 1) == pytest.approx([0.525], abs=1e-15)


def test_ca2fl_corrects_what_it_remembers_with_what_is_new():
    """Rate 1/2, three users, buffer 2, as above. With gradients g = w - a of the model given:

    Step 1: users 0 and 1 have g = -1, -2; nothing is remembered: w = 0 + 1.5/2 = 0.75.
    Step 2: g = -0.25, -1.25; remembered -1, -2, mean over three users -1; new mean 0.75:
    w = 0.75 + (1 - 0.75)/2 = 0.875.
    Step 3: user 0 has g = -0.125, user 2 g = -6 of the first model; remembered -0.25, -1.25, 0,
    mean -0.5; new mean (0.125 - 6)/2 = -2.9375: w = 0.875 + 3.4375/2.
    """
    sim = simulation("ca2fl", TARGETS, on_fleet(SECONDS), 0.5, buffer=2)
    assert after(sim, 3) == pytest.approx([0.75, 0.875, 2.59375], abs=1e-14)
    assert sim.clock == 5.0
    # Half forgotten after a step: in step 2, -0.5 and -1, mean -0.5, new mean (0.25 - 0.25)/2.
    fading = simulation("ca2fl", TARGETS, on_fleet(SECONDS), 0.5, buffer=2, fade=1)
    assert after(fading, 2) == pytest.approx([0.75, 1.0], abs=1e-14)


# Users with 1 and 2.5 s, a = 1 and 4, rate 1/2, alpha = 0.8. Updates arrive from user 0 at 1, 2 s,
# user 1 at 2.5 s with the first model (tau = 2), user 0 at 3 s with the model of 2 s (tau = 1):
#   w = 0.8 * 0.5 = 0.4;  0.2 * 0.4 + 0.8 * 0.7 = 0.64
#   then (1 - A) 0.64 + A * 2, and (1 - B) of this + B * 0.82, with A = 0.8 s(2), B = 0.8 s(1)
@pytest.mark.parametrize(
    ("options", "s2", "s1"),
    [
        ({"staleness": "constant"}, 1, 1),
        ({"power": 1}, 1 / 3, 1 / 2),
        ({}, 3**-0.5, 2**-0.5),
        ({"staleness": "hinge", "slope": 2, "tolerated": 1}, 1 / 3, 1),
        ({"staleness": "hinge"}, 1, 1),
    ],
    ids=str,
)
def test_fedasync_mixes_models(options, s2, s1):
    sim = simulation("fedasync", [1.0, 4.0], on_fleet([1.0, 2.5]), 0.5, alpha=0.8, **options)
    third = 0.64 + 0.8 * s2 * (2 - 0.64)
    wanted = [0.4, 0.64, third, third + 0.8 * s1 * (0.82 - third)]
    assert after(sim, 4) == pytest.approx(wanted, abs=1e-14)
    assert sim.clock == 3.0


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_fedasyncs_local_steps_have_a_proximal_term(engine):
    """a = 1, rate 1/2, rho = 1, two steps: the second gradient is 0, so w_u = 0.5; alpha 0.8."""
    world = on_fleet([1.0], steps=2)
    sim = simulation("fedasync", [1.0], world, 0.5, 2, engine, alpha=0.8, rho=1.0)
    assert after(sim, 1) == pytest.approx([0.4], abs=1e-15)
    assert sim.clock == 2.0


def test_users_weighed_by_their_samples_keep_alpha():
    arrived = replace(Arrivals(np.array([1])), weight=np.array([30.0]))
    assert method("fedasync").weights(arrived, np.zeros(1)).tolist() == [[0.9]]
    both = replace(Arrivals(np.array([1, 1])), weight=np.array([1.0, 3.0]))
    assert method("fedbuff").weights(both, np.zeros(1)).tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("name", ["fedbuff", "fedasync", "ca2fl"])
def test_without_a_fleet_they_say_what_they_need(name):
    with pytest.raises(SalfError, match="needs a clock"):
        simulation(name, [1.0], recorded([1], [1]), 0.5)
