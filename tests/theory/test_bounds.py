from math import e, inf, nan

import numpy as np
import pytest

from reference import draw_all, unreached
from salf.common.errors import SalfError
from salf.methods import method
from salf.theory import Constants, Federation, convergence_bound, variance_bound
from salf.worlds.depth import Uniform


def test_the_constants_of_the_theorem_by_hand():
    # U = 2, L = 1: p_1 = (1/2)^2 = 1/4, so C = G^2 * 4*2*1/1 * (5/4)/(3/4) = 3 * 40/3 = 40.
    federation = Federation(users=2, layers=1)
    constants = Constants(rho_c=1.0, rho_s=2.0, sigma2=[4.0, 8.0], G2=3.0, Gamma=0.5)
    assert constants.C(federation) == pytest.approx(40.0)
    assert constants.B(federation) == pytest.approx((4 + 8) / 4 + 6 * 2 * 0.5)  # 9
    assert variance_bound(federation, eta=0.1, G2=3.0) == pytest.approx(0.4)
    # kappa = 2, gamma = 16, t = 5: 2/20 * (2*49/1 + 1*16/2 * 0.25) = 10
    assert convergence_bound(federation, constants, 5, 0.25) == pytest.approx(10.0)
    assert convergence_bound(federation, constants, 5, 0.25, deadline=False) == pytest.approx(2.0)


def test_one_sigma_stands_for_all_users_and_another_count_is_refused():
    federation = Federation(users=10, layers=3)
    assert Constants(1, 1, [5.0], 1.0).B(federation) == pytest.approx(0.5)
    with pytest.raises(SalfError, match="2 values of sigma"):
        Constants(1, 1, [5.0, 5.0], 1.0).B(federation)


def test_the_deadline_costs_more_with_layers_and_less_with_users():
    by_layers = [Federation(30, layers).spread for layers in (1, 2, 4, 8, 16)]
    by_users = [Federation(users, 8).spread for users in (2, 5, 10, 100, 1000)]
    assert by_layers == sorted(by_layers)
    assert by_users == sorted(by_users, reverse=True)
    assert Federation(100_000, 8).spread == pytest.approx(4 * 8, rel=1e-3)


@pytest.mark.parametrize(("users", "layers"), [(2, 1), (3, 4), (10, 3)])
def test_the_variance_of_real_steps_is_below_lemma_3(users, layers):
    """The exact variance over AS4 is estimated from 4,000 draws; the bound is not close to it."""
    rng = np.random.default_rng(0)
    depth = Uniform(users, layers)
    gradients = rng.normal(size=(layers, users, 5))
    full = gradients.mean(axis=1)
    G2 = (gradients**2).sum(axis=(0, 2)).max()
    squares = []
    for _ in range(4000):
        c = method("salf").weights(draw_all(depth, rng), unreached(depth))
        step = np.einsum("lu,lud->ld", c, gradients)
        squares.append(((step - full) ** 2).sum())
    assert 0 < np.mean(squares) < variance_bound(Federation(users, layers), 1.0, G2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Federation(1, 3),
        lambda: Federation(3, 0),
        lambda: Constants(2.0, 1.0, [1.0], 1.0),
        lambda: Constants(1.0, 1.0, [], 1.0),
        lambda: Constants(1.0, 1.0, [-1.0], 1.0),
        lambda: convergence_bound(Federation(2, 1), Constants(1, 1, [1.0], 1.0), 0, 1.0),
        lambda: Federation(3, 10**20),
        lambda: Federation(10**400, 3),
        lambda: Constants(1.0, inf, [1.0], 1.0),
        lambda: Constants(nan, 1.0, [1.0], 1.0),
        lambda: Constants(1.0, 1.0, [1.0, nan], 1.0),
        lambda: Constants(1.0, 1.0, [1.0], inf),
        lambda: Constants(1.0, 1.0, [1.0], 1.0, nan),
        lambda: convergence_bound(Federation(2, 1), Constants(1, 1, [1.0], 1.0), 10**400, 1.0),
        lambda: convergence_bound(Federation(2, 1), Constants(1, 1, [1.0], 1.0), 1, nan),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(wrong):
    with pytest.raises(SalfError):
        wrong()


def test_the_largest_sizes_have_bounds():
    many = Federation(users=10**9, layers=10**9)
    # With U = L -> infinity, p_1 = (1 - 1/(L+1))^U -> 1/e.
    assert many.spread == pytest.approx(4e9 * (1 + 1 / e) / (1 - 1 / e), rel=1e-6)
    assert Federation(2, 10**9).spread == pytest.approx(8e9 * (2 - 2e-9) / 2e-9, rel=1e-6)
    assert Constants(1, 1, [5.0], 1.0).B(many) == pytest.approx(5e-9)
