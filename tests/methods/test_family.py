"""Methods for users that stay slow: weights and steps by hand, and unbiasedness."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nets import small_mlp
from reference import (
    ANY_MODEL,
    Scripted,
    assert_close,
    copy_of,
    data,
    gradients,
    simulate,
    steps,
)
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.methods import method
from salf.worlds.depth import PerUser

# Three users, two layers: A finished, B reached layer 2, C nothing.
DEPTHS = np.array([1, 2, 3])
CHANCE = np.array([[1.0, 0.25, 0.01], [1.0, 0.5, 0.02]])


def weights(name, **options):
    arrived = replace(Arrivals(DEPTHS), chances=CHANCE, intervals=1 / CHANCE, everybody=6.0)
    return method(name, **options).weights(arrived, np.array([0.2, 0.1]))


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("inverse", {}, [[1 / 3, 0, 0], [1 / 3, 2 / 3, 0]]),
        ("inverse", {"floor": 0.8}, [[1 / 3, 0, 0], [1 / 3, 1.25 / 3, 0]]),
        ("inverse", {"normalised": True}, [[1, 0, 0], [1 / 3, 2 / 3, 0]]),
        ("inverse", {"whole": True}, [[1 / 3, 0, 0], [1 / 3, 0, 0]]),
        ("fedau", {}, [[1 / 3, 0, 0], [1 / 3, 2 / 3, 0]]),
        ("mifa", {}, [[1 / 6, 0, 0], [1 / 6, 1 / 6, 0]]),
        ("fedvarp", {}, [[1, 0, 0], [1 / 2, 1 / 2, 0]]),
        ("fedstale", {}, [[1 / 3, 0, 0], [1 / 3, 2 / 3, 0]]),
        ("salf-recall", {}, [[1, 0, 0], [1 / 2, 1 / 2, 0]]),
    ],
)
def test_weights_by_hand(name, options, wanted):
    assert weights(name, **options) == pytest.approx(np.array(wanted))


def test_for_whole_updates_the_chance_is_that_of_finishing():
    arrived = replace(Arrivals(np.array([1])), chances=np.array([[0.25], [0.5]]))
    found = method("inverse", whole=True).share(arrived, 2)
    assert found.tolist() == [[4.0], [4.0]]


ROUNDS = [[1, 2, 4], [4, 1, 2], [2, 4, 1]]  # depths; users take turns
P = (0.3, 0.2, 0.1)


def by_hand(rule, fade, beta, rate=0.1):
    """The weights after these rounds, from gradients on copies and the formula of METHODS.

    `rule(arrived in the layer, p_l)` is s_l.
    """
    model, samples = small_mlp(), data(3, 2, (4,))
    names = [[f"{place}.weight", f"{place}.bias"] for place in (0, 2, 4)]
    now, last = copy_of(model), {}
    for t, depths in enumerate(ROUNDS, 1):
        after = {name: value.clone() for name, value in now.items()}
        new = {}
        for layer in (1, 2, 3):
            there = [user for user in range(3) if depths[user] <= layer]
            for name in names[layer - 1]:
                step = torch.zeros_like(now[name])
                for user, (given, value) in (
                    (u, last[u, name]) for u in range(3) if (u, name) in last
                ):
                    left = 1.0 if fade is None else fade / (fade + t - given)
                    step += beta * left * value / 3
                    if user in there:
                        step -= rule(len(there), P[layer - 1]) * beta * left * value
                for user in there:
                    rows = slice(2 * user, 2 * user + 2)
                    g = gradients(model, samples[0][rows], samples[1][rows], weights=now)[name]
                    step += rule(len(there), P[layer - 1]) * g
                    new[user, name] = (t, g)
                after[name] -= rate * step
        now, last = after, {**last, **new}
    return now


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize(
    ("name", "options", "rule", "beta"),
    [
        ("mifa", {"fade": None}, lambda there, p: 1 / 3, 1.0),
        ("mifa", {"fade": 4.0}, lambda there, p: 1 / 3, 1.0),
        ("fedvarp", {"fade": 4.0}, lambda there, p: 1 / there, 1.0),
    ],
)
def test_three_rounds_with_memory_are_the_formula(name, options, rule, beta, engine):
    sim = simulate(small_mlp(), name, Scripted(ROUNDS, 3, P), engine=engine, options=options)
    assert_close(steps(sim, 3)[-1], by_hand(rule, options["fade"], beta), 1e-12)


def stand_ins_by_hand(fade, rate=0.1):
    """SALF-Recall after these rounds: all users count, the absent by what is left of them."""
    model, samples = small_mlp(), data(3, 2, (4,))
    names = [[f"{place}.weight", f"{place}.bias"] for place in (0, 2, 4)]
    now, last = copy_of(model), {}
    for t, depths in enumerate(ROUNDS, 1):
        after = {name: value.clone() for name, value in now.items()}
        for layer in (1, 2, 3):
            for name in names[layer - 1]:
                total, weight = torch.zeros_like(now[name]), 0.0
                for user in range(3):
                    if depths[user] <= layer:
                        rows = slice(2 * user, 2 * user + 2)
                        found = gradients(model, samples[0][rows], samples[1][rows], weights=now)
                        last[user, name] = (t, found[name])
                    if (user, name) in last:
                        given, value = last[user, name]
                        left = fade / (fade + t - given)
                        total, weight = total + left * value, weight + left
                after[name] -= rate * total / weight
        now = after
    return now


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_salf_recall_averages_all_users_the_absent_by_what_is_left(engine):
    more = {"engine": engine, "options": {"fade": 4.0}}
    sim = simulate(small_mlp(), "salf-recall", Scripted(ROUNDS, 3, P), **more)
    assert_close(steps(sim, 3)[-1], stand_ins_by_hand(4.0), 1e-12)


def test_salf_recall_that_forgets_at_once_is_salf_without_p():
    found = {}
    for name, options in (("salf", {}), ("salf-recall", {"fade": 0.0})):
        depth = Scripted(ROUNDS, 3)
        sim = simulate(small_mlp(), name, depth, momentum=0.5, options=options)
        found[name] = steps(sim, 3)[-1]
    assert_close(found["salf-recall"], found["salf"], 1e-12)


# Fixed speeds: users that hardly ever, sometimes, and nearly always reach a layer.
LAW = PerUser(
    np.array([[0.1, 0.1, 0.1, 0.7], [0.3, 0.3, 0.3, 0.1], [0.5, 0.2, 0.2, 0.1], [0.9, 0.0, 0.1, 0]])
)
DRAWS = 5_000


def mean_weights(name, **options):
    """The means of c[l, u] over many rounds, and their standard errors."""
    rule, users = method(name, **options), np.arange(4)
    chance, total, squares = LAW.reach(users), 0.0, 0.0
    for t in range(1, DRAWS + 1):
        arrived = replace(LAW.draw(Keyed(0, t), users), chances=chance)
        found = rule.weights(arrived, LAW.unreached(users))
        total, squares = total + found, squares + found**2
    mean = total / DRAWS
    return mean, np.sqrt((squares / DRAWS - mean**2) / DRAWS)


# A test of 12 means at once, each rejected beyond 4.3 standard errors: by chance alone that is so
# in 12 * 1.7e-5 = 2e-4 of all seeds (and this seed is fixed).
LIMIT = 4.3


@pytest.mark.parametrize("name", ["inverse", "fedstale"])
def test_inverse_probability_is_unbiased_for_users_of_any_speed(name):
    mean, error = mean_weights(name, floor=0.01)
    assert (np.abs(mean - 1 / 4) <= LIMIT * error).all()


def test_salf_is_biased_towards_fast_users():
    """The negative control: the test above would notice."""
    mean, error = mean_weights("salf")
    assert (np.abs(mean - 1 / 4) > LIMIT * error).any()
    assert mean[0, 3] > 2 * mean[0, 0]


def test_without_knowing_the_reach_inverse_probability_says_so():
    with pytest.raises(SalfError, match="known to methods that use them"):
        method("inverse").share(Arrivals(np.array([1])), 2)
