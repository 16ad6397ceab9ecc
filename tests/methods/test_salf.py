"""[salf_update_rule] in numbers, and Lemma 2: the SALF step is unbiased."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from reference import ANY_MODEL, plan_of, rows_of, unreached
from salf.core.arrivals import Arrivals
from salf.core.layers import Layers
from salf.core.server import SGD, Server
from salf.engines import ENGINES
from salf.methods.drop import Drop
from salf.methods.salf import SALF
from salf.worlds.depth import Uniform

# Three layers of one weight each: output = w3 w2 w1 x, loss = (output - y)^2 / 2, so with the
# error e = output - y the gradients are e w2 w3 x, e w1 w3 x, e w1 w2 x.
#   user A: x = 1,  y = 1: output 3,  e = 2,  gradients  3, 2, 12
#   user B: x = 2,  y = 4: output 6,  e = 2,  gradients  6, 4, 24
#   user C: x = -1, y = 1: output -3, e = -4, gradients  6, 4, 24
START = (2.0, 3.0, 0.5)
INPUTS = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
TARGETS = torch.tensor([[1.0], [4.0], [1.0]], dtype=torch.float64)
GRADIENTS = {"A": (3.0, 2.0, 12.0), "B": (6.0, 4.0, 24.0), "C": (6.0, 4.0, 24.0)}
# Depths 1, 2 and L + 1: U^1 = {A}, U^2 = U^3 = {A, B}; [p_constant] for U = L = 3.
DEPTHS = (1, 2, 4)
P = (27 / 64, 8 / 64, 1 / 64)
# w^l - 0.1 mean_{U^l}(g) / (1 - p_l):
#   2   - 0.1 *  3 * 64/37 = 1.481081
#   3   - 0.1 *  3 * 64/56 = 2.657143
#   0.5 - 0.1 * 18 * 64/63 = -1.328571
SALF_WEIGHTS = (1.4810810810810812, 2.6571428571428573, -1.3285714285714285)
# Uncorrected (p_l = 0): 2 - 0.3, 3 - 0.3, 0.5 - 1.8.
UNCORRECTED_WEIGHTS = (1.7, 2.7, -1.3)
# Divided by U = 3 and not corrected: 2 - 0.1 * 3/3, 3 - 0.1 * 6/3, 0.5 - 0.1 * 36/3.
ALL_WEIGHTS = (1.9, 2.8, -0.7)


def scalar_net():
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in START)).double()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), START, strict=True):
            parameter.fill_(value)
    return model


def half_squared_error(outputs, targets):
    return ((outputs - targets) ** 2 / 2).squeeze(1)


def values(model):
    return [parameter.item() for parameter in model.parameters()]


def one_round(engine, name, p, momentum=0.0, **options):
    model = scalar_net()
    made = ENGINES[engine](model, Layers.of(model), half_squared_error)
    server = Server(made.weights, lambda t: 0.1, SGD(momentum))
    plan = plan_of(name, DEPTHS, 3, p, **options)
    result = made.round(plan, 1, {}, rows_of(INPUTS, TARGETS, 1))
    server.apply(result.step, 1)
    return values(model), result


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize(
    ("name", "options", "p", "wanted"),
    [
        ("salf", {}, P, SALF_WEIGHTS),
        ("salf", {}, (0, 0, 0), UNCORRECTED_WEIGHTS),
        ("salf", {"average": "all"}, P, ALL_WEIGHTS),
        # A alone finished: 2 - 0.1 * 3, 3 - 0.1 * 2, 0.5 - 0.1 * 12.
        ("drop", {}, P, (1.7, 2.8, -0.7)),
        ("drop", {"average": "all"}, P, (1.9, 3 - 0.2 / 3, 0.1)),
        # Everybody: 2 - 0.1 * 15/3, 3 - 0.1 * 10/3, 0.5 - 0.1 * 60/3.
        ("fedavg", {}, P, (1.5, 3 - 1 / 3, -1.5)),
    ],
)
def test_one_round_by_hand(engine, name, options, p, wanted):
    found, _ = one_round(engine, name, p, **options)
    assert found == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_a_round_reports_the_reach_and_the_mean_loss_of_those_who_took_part(engine):
    _, result = one_round(engine, "salf", P)
    assert result.reached == (1, 2, 2)
    assert result.loss == pytest.approx((2.0**2 / 2 + 2.0**2 / 2) / 2)  # A and B; C sent nothing


def test_a_layer_that_nobody_can_reach_has_no_weight_and_no_nan():
    depths = Arrivals(np.array([3, 4]), np.array([True, True]))
    c = SALF().weights(depths, np.array([1.0, 0.5, 0.0]))
    assert c.tolist() == [[0, 0], [0, 0], [1, 0]]


# ---- Lemma 2, without sampling -------------------------------------------------------------


def expected_weights(rule, users, layers, p):
    """E[c[l, u]] under AS4: the mean over all (L + 1)^U equally likely depth vectors."""
    every = list(product(range(1, layers + 2), repeat=users))
    total = sum(rule.weights(Arrivals(np.array(d), np.array(d) > 1), p) for d in every)
    return total / len(every)


@pytest.mark.parametrize(("users", "layers"), [(1, 2), (2, 3), (3, 3), (4, 2)])
def test_lemma_2_exactly_the_expected_weight_is_1_over_U(users, layers):
    """Over every depth vector; no sampling at all."""
    p = unreached(Uniform(users, layers))
    found = expected_weights(SALF(), users, layers, p)
    np.testing.assert_allclose(found, np.full((layers, users), 1 / users), rtol=0, atol=1e-12)


REACH = np.array([1, 2, 3]) / 4  # each user's chance of layers 1, 2, 3


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (SALF(), (1 - (1 - REACH) ** 3) / 3),  # without the correction, short by p_l
        (SALF(average="all"), REACH / 3),
        (Drop(), np.full(3, (1 - 0.75**3) / 3)),
    ],
)
def test_without_p_l_the_expected_weight_is_less(rule, wanted):
    found = expected_weights(rule, 3, 3, np.zeros(3))
    np.testing.assert_allclose(found, np.tile(wanted[:, None], 3), atol=1e-12)
