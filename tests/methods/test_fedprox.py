"""FedProx against numbers worked out by hand."""

import numpy as np
import pytest
from quadratic import after, recorded, simulation

from salf.core.arrivals import Arrivals
from salf.methods import method


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_local_steps_follow_the_gradient_with_the_proximal_term(engine):
    """One user with a = 1, mu = 0.5, rate 0.5, from w_t = 0.

    Step 1: g = -1, w = 0.5. Step 2: g = -0.5 + 0.5 * 0.5 = -0.25, w = 0.625.
    Step 3: g = -0.375 + 0.5 * 0.625 = -0.0625, w = 0.65625.
    """
    sim = simulation("fedprox", [1.0], recorded([1], [3]), 0.5, 3, engine, mu=0.5)
    assert after(sim, 1) == pytest.approx([0.65625], abs=1e-15)
    # Half-way to 1 each time without the term.
    plain = simulation("fedprox", [1.0], recorded([1], [3]), 0.5, 3, engine, mu=0.0)
    assert after(plain, 1) == pytest.approx([0.875], abs=1e-15)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_term_pulls_towards_the_model_of_the_round(engine):
    """a = 1, mu = 1, rate 0.5, two steps: w_t + (1 - w_t) / 2, because the second gradient is 0."""
    sim = simulation("fedprox", [1.0], recorded([1], [2]), 0.5, 2, engine)
    assert after(sim, 3) == pytest.approx([0.5, 0.75, 0.875], abs=1e-15)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_straggler_counts_with_its_complete_steps(engine):
    """User 0 (a = 1) takes 2 steps to 0.5 as above; user 1 (a = 3) is stopped in its second.

    It has w = 1.5, so the mean is 1. User 2 is stopped in its first step and does not count.
    """
    world = recorded([1, 2, 2], [2, 2, 1])
    sim = simulation("fedprox", [1.0, 3.0, 9.0], world, 0.5, 2, engine)
    assert after(sim, 1) == pytest.approx([1.0], abs=1e-15)


def test_layers_of_a_step_that_was_stopped_do_not_count():
    """3 layers: stopped in step 3 at depth 2, in step 1 at depth 3, finished."""
    steps = {"steps": np.array([3, 1, 3]), "planned": np.array([3, 3, 3])}
    arrived, rule = Arrivals(np.array([2, 3, 1]), **steps), method("fedprox")
    assert rule.weights(arrived, np.zeros(3)).tolist() == [[0.5, 0, 0.5]] * 3
    (group,) = rule.plan(1, arrived, np.zeros(3)).groups
    assert group.users.tolist() == [0, 2]
    assert group.steps.tolist() == [2, 3]
    assert group.depth.tolist() == [1, 1]
