"""Deadlines that minimise the bound, against brute force."""

from itertools import product

import numpy as np
import pytest
from scipy import special

from salf.theory import Constants, Federation, convergence_bound
from salf.theory.planning import DeadlineBound, theorem_spread

LAMBDAS = np.array([0.4, 1.0, 2.5, 6.0])
GRID = np.array([0.5, 0.75, 1.0, 1.5, 2.0, 3.0])


def unreached(deadline, layers=3):
    """p_l of users with exponential times per layer: prod_u Q(L + 1 - l, lambda_u T)."""
    left = np.arange(layers, 0, -1)[:, None]
    return special.gammaincc(left, LAMBDAS * deadline).prod(axis=1)


def made(budget=20.0, G2=10.0, grid=GRID, **constants):
    given = {"rho_c": 0.5, "rho_s": 2.0, "sigma2": [1.0], "G2": G2} | constants
    spread = np.array([theorem_spread(unreached(T), 4) for T in grid])
    return DeadlineBound(Federation(4, 3), Constants(**given), 5.0, budget, grid, grid, spread)


def recursion(bound, spread):
    """The proof's recursion, round by round."""
    constants, delta = bound.constants, bound.distance2
    for t, each in enumerate(spread, 1):
        eta = 2 / (constants.rho_c * (8 * constants.rho_s / constants.rho_c + t))
        noise = constants.B(bound.federation) + constants.G2 * each
        delta = (1 - constants.rho_c * eta) * delta + eta**2 * noise
    return constants.rho_s / 2 * delta


def test_the_spread_of_users_alike_in_every_layer_is_the_theorems():
    federation = Federation(5, 3)
    p = np.full(3, (1 - 1 / 4) ** 5)
    assert theorem_spread(p, 5) == pytest.approx(federation.spread)
    assert theorem_spread(np.array([1.0, 0.0, 0.0]), 5) == np.inf


def test_the_bound_is_the_recursion_and_stays_below_the_theorem():
    bound = made()
    spread = bound.spread[[0, 2, 5, 3]]
    assert bound.bound(spread) == pytest.approx(recursion(bound, spread))
    for rounds in (1, 5, 25):
        worst = np.full(rounds, bound.federation.spread)
        theorem = convergence_bound(bound.federation, bound.constants, rounds + 1, bound.distance2)
        assert bound.bound(worst) <= theorem


@pytest.mark.parametrize("G2", [0.01, 1.0, 100.0])
def test_the_best_constant_deadline_by_brute_force(G2):
    bound = made(G2=G2)
    deadlines, value = bound.constant()
    values = [
        recursion(bound, np.full(int(20 / T), spread))
        for T, spread in zip(GRID, bound.spread, strict=True)
    ]
    assert value == pytest.approx(min(values))
    assert deadlines.tolist() == [GRID[np.argmin(values)]] * int(20 / deadlines[0])
    assert bound.schedule()[1] <= value


@pytest.mark.parametrize("G2", [0.1, 10.0])
def test_the_best_schedule_by_brute_force(G2):
    """All schedules of up to five rounds within the budget."""
    bound = made(budget=2.5, G2=G2)
    best = min(
        recursion(bound, bound.spread[list(places)])
        for rounds in range(1, 6)
        for places in product(range(len(GRID)), repeat=rounds)
        if GRID[list(places)].sum() <= 2.5
    )
    deadlines, value = bound.schedule()
    assert deadlines.sum() <= 2.5 * (1 + 1e-9)
    # A price for seconds finds the corners of the trade-off: what is left of the budget is lost.
    assert best * (1 - 1e-9) <= value <= 1.1 * best


def test_with_the_theorems_step_sizes_all_rounds_count_nearly_alike():
    deadlines, _ = made(grid=np.geomspace(0.5, 5, 60), budget=60.0).schedule()
    assert deadlines.max() / deadlines.min() < 1.1


def test_no_deadline_within_the_budget_has_no_bound():
    assert made(budget=0.1).constant()[1] == np.inf
    assert made(budget=0.1).schedule()[1] == np.inf
