"""The planner: closed forms, scipy, and brute force over all schedules of a small case."""

from functools import cache
from itertools import product
from math import comb

import numpy as np
import pytest
from scipy import optimize, special

from salf.common.errors import SalfError
from salf.theory import Constants, Federation, convergence_bound
from salf.theory.planning import (
    BoundProblem,
    TradeOff,
    count_law,
    sharp_spread,
    theorem_spread,
)

USERS, LAYERS = 8, 3
RATES = np.exp(np.linspace(-1, 1, USERS))  # layers a second


def erlang_reach(T, rates=RATES, layers=LAYERS):
    """P(u reaches l): L + 1 - l layers of exponential times within T."""
    left = layers - np.arange(layers)
    return 1 - special.gammaincc(left[:, None], rates * T)


def problem(budget=20.0, spread=theorem_spread, seconds=lambda T: T, rate=None, **constants):
    chosen = {"rho_c": 0.5, "rho_s": 2.0, "sigma2": [3.0], "G2": 1.0, "Gamma": 0.0} | constants
    trade = TradeOff.of(lambda T: spread(count_law(erlang_reach(T))), seconds, budget)
    return BoundProblem(Federation(USERS, LAYERS), Constants(**chosen), 40.0, trade, budget, rate)


@cache
def exact_spread(spread, T):
    return spread(count_law(erlang_reach(T)))


def exact_bound(made, deadlines, spread=theorem_spread):
    """The recursion itself, round by round, with the law and not a table of it."""
    constants, delta = made.constants, made.distance2
    for eta, T in zip(made.eta, deadlines, strict=False):
        C = constants.G2 * exact_spread(spread, float(T))
        delta = (1 - constants.rho_c * eta) * delta
        delta += eta**2 * (constants.B(made.federation) + C)
    return constants.rho_s / 2 * delta


def test_users_that_are_alike_make_a_binomial_law():
    reach = np.tile(np.arange(1, LAYERS + 1)[:, None] / (LAYERS + 1), USERS)  # AS4
    law = count_law(reach)
    for layer in range(1, LAYERS + 1):
        p = layer / (LAYERS + 1)
        exact = [comb(USERS, k) * p**k * (1 - p) ** (USERS - k) for k in range(USERS + 1)]
        np.testing.assert_allclose(law[layer - 1], exact, rtol=1e-12)


def test_users_that_differ_by_enumeration():
    reach = np.array([[0.1, 0.5, 0.9], [0.3, 0.6, 1.0]])
    law = np.zeros((2, 4))
    for layer, row in enumerate(reach):
        for there in product((0, 1), repeat=3):
            law[layer, sum(there)] += np.prod(np.where(there, row, 1 - row))
    np.testing.assert_allclose(count_law(reach), law, atol=1e-15)


@pytest.mark.parametrize(
    ("law", "theorem", "sharp"),
    [
        # Two users, each with chance 1/2: p + (1-p)^-2 (P(1) (8 (1 - 1/2) + p^2) + P(2) p^2).
        (
            [[0.25, 0.5, 0.25]],
            8 * 1.25 / 0.75,
            0.25 + (0.5 * (4 + 0.0625) + 0.25 * 0.0625) / 0.5625,
        ),
        ([[0.0, 0.0, 1.0]], 8, 0),  # everybody: no deadline, no spread
        # Layers that are reached in half of the rounds and in fewer.
        (
            [[0.9, 0.05, 0.05], [0.5, 0.25, 0.25]],
            8 * (1.9 / 0.1 + 1.5 / 0.5),
            0.9 + (0.05 * 4 + 0.1 * 0.81) / 0.01 + 0.5 + (0.25 * 4 + 0.5 * 0.25) / 0.25,
        ),
        ([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], np.inf, np.inf),  # a layer that nobody ever reaches
    ],
)
def test_spreads_by_hand(law, theorem, sharp):
    assert theorem_spread(np.array(law)) == pytest.approx(theorem)
    assert sharp_spread(np.array(law)) == pytest.approx(sharp)


def test_the_constant_of_the_papers_formula_by_hand():
    """Two users and two layers under AS4: p_1 = (2/3)^2 = 4/9 and p_2 = (1/3)^2 = 1/9."""
    law = count_law(np.array([[1 / 3, 1 / 3], [2 / 3, 2 / 3]]))
    # 4U/(U-1) = 8; (1 + 4/9)/(1 - 4/9) = 13/5; (1 + 1/9)/(1 - 1/9) = 5/4.
    assert theorem_spread(law) == pytest.approx(8 * (13 / 5 + 5 / 4))  # 30.8
    # [C_constant]: both layers with p_1.
    assert Federation(2, 2).spread == pytest.approx(8 * 2 * 13 / 5)  # 41.6


def test_the_sharp_spread_is_never_larger():
    rng = np.random.default_rng(0)
    for _ in range(200):
        law = count_law(rng.random((4, 6)) ** rng.uniform(0.2, 2))
        assert sharp_spread(law) <= theorem_spread(law) * (1 + 1e-12)


def test_the_recursion_stays_below_the_theorem():
    """Unrolled with the theorem's step sizes and a constant C it is at most [FL_Convergence]."""
    made = problem()
    federation, constants = made.federation, made.constants
    for rounds in (1, 5, 25):
        spread = np.full(rounds, federation.spread)
        theorem = convergence_bound(federation, constants, rounds + 1, made.distance2)
        assert made.bound(spread) <= theorem


def test_the_bound_is_the_recursion():
    made = problem()
    deadlines = np.array([1.0, 1.5, 2.0, 3.0])
    _, spread = made.trade.at(deadlines)
    assert made.bound(spread) == pytest.approx(exact_bound(made, deadlines), rel=1e-3)
    constant = np.full(int(20 / 2.5), 2.5)
    assert made.bound_at(2.5) == pytest.approx(exact_bound(made, constant), rel=1e-3)


@pytest.mark.parametrize("spread", [theorem_spread, sharp_spread])
@pytest.mark.parametrize("rate", [None, lambda t: 0.1], ids=["theorem", "constant"])
def test_the_best_constant_deadline_by_brute_force(spread, rate):
    made = problem(spread=spread, rate=rate)
    found = made.best_constant()
    values = {
        rounds: exact_bound(made, [20 / rounds] * rounds, spread)
        for rounds in range(1, made.most_rounds + 1)
    }
    best = min(values, key=values.get)
    assert len(set(found.deadlines)) == 1
    assert found.bound == pytest.approx(values[best], rel=2e-3)
    assert exact_bound(made, found.deadlines, spread) <= values[best] * (1 + 2e-3)
    assert found.deadlines.sum() == pytest.approx(20)


@pytest.mark.parametrize("spread", [theorem_spread, sharp_spread])
@pytest.mark.parametrize("rate", [None, lambda t: 0.25], ids=["theorem", "constant"])
def test_the_best_schedule_by_brute_force(spread, rate):
    """All schedules of up to four rounds on a fine grid of deadlines that use the budget up."""
    budget, step = 6.0, 0.1
    made = problem(budget, spread, rate=rate)
    best = np.inf
    grid = [place * step for place in range(round(budget / step) + 1)]
    for rounds in range(1, 5):
        for cut in product(range(1, len(grid) - 1), repeat=rounds - 1):
            last = len(grid) - 1 - sum(cut)
            if last >= 1:
                deadlines = [grid[place] for place in (*cut, last)]
                best = min(best, exact_bound(made, deadlines, spread))
    found = min((made.schedule_of(rounds) for rounds in range(1, 5)), key=lambda p: p.bound)
    assert exact_bound(made, found.deadlines, spread) <= best * (1 + 1e-3)
    assert found.bound == pytest.approx(exact_bound(made, found.deadlines, spread), rel=5e-3)
    assert found.deadlines.sum() == pytest.approx(budget)
    assert made.best_schedule().bound <= found.bound


@pytest.mark.parametrize("rounds", [3, 12])
def test_scipy_finds_no_better_schedule(rounds):
    """ADEL-FL's own way, a general solver, on the same problem."""
    made = problem(rate=lambda t: 0.2)
    found = made.schedule_of(rounds)

    def value(deadlines):
        return exact_bound(made, deadlines)

    least = made.trade.deadlines[0] * 1.05
    solved = optimize.minimize(
        value,
        np.full(rounds, made.budget / rounds),
        bounds=[(least, made.budget)] * rounds,
        constraints=optimize.LinearConstraint(np.ones((1, rounds)), -np.inf, made.budget),
        method="SLSQP",
    )
    assert value(found.deadlines) <= solved.fun * (1 + 1e-3)
    np.testing.assert_allclose(found.deadlines, solved.x, rtol=0.1)


def test_with_the_theorems_step_sizes_all_rounds_count_nearly_alike():
    """a_t is proportional to (gamma + t - 1)/(gamma + t), so the schedule is nearly constant."""
    made = problem()
    _, weights = made._unrolled(20)
    gamma, t = 32, np.arange(1, 21)
    expected = (gamma + t - 1) / (gamma + t)
    np.testing.assert_allclose(weights / weights[0], expected / expected[0], rtol=1e-12)
    plan = made.best_schedule()
    assert plan.deadlines.max() / plan.deadlines.min() < 1.05


def test_with_a_constant_step_size_later_rounds_get_longer_deadlines():
    plan = problem(rate=lambda t: 0.25).best_schedule()
    assert (np.diff(plan.deadlines) >= -1e-12).all()
    assert plan.deadlines[-1] > 1.2 * plan.deadlines[0]


def test_a_schedule_is_never_worse_than_the_best_constant():
    for G2 in (0.01, 1.0, 100.0):
        made = problem(G2=G2)
        assert made.best_schedule().bound <= made.best_constant().bound


def test_devices_without_jitter_get_the_shortest_deadline_that_does():
    """The law is a step: no deadline but the shortest is worth its seconds."""
    trade = TradeOff.of(lambda T: 10.0 if T >= 1.5 else np.inf, lambda T: T, 30.0)
    made = BoundProblem(Federation(4, 2), Constants(1.0, 1.0, [1.0], 1.0), 1.0, trade, 30.0)
    assert made.best_constant().rounds == 20
    np.testing.assert_allclose(made.best_schedule().deadlines, 1.5, rtol=1e-6)
    assert made.bound_at(1.4) == np.inf
    assert made.bound_at(2.9) == made.bound_at(3.0)  # ten rounds each


def test_two_steps_are_mixed_only_where_that_pays():
    """A law that is not convex: rounds take either deadline, and never one in between."""
    trade = TradeOff.of(
        lambda T: 100.0 if 1 <= T < 2 else 10.0 if T >= 2 else np.inf, lambda T: T, 30.0
    )
    made = BoundProblem(Federation(4, 2), Constants(0.5, 1.0, [1.0], 1.0), 500.0, trade, 30.0)
    deadlines = made.schedule_of(20).deadlines
    near = np.isclose(deadlines, 1, rtol=0.1) | np.isclose(deadlines, 2, rtol=0.1)
    assert near.sum() >= 19  # one round may have what is left


def test_rounds_that_end_early_cost_what_they_last():
    """Everybody is done after 2 s, so a longer deadline costs no more."""
    made = problem(seconds=lambda T: min(T, 2.0))
    assert made.bound_at(5.0) == pytest.approx(made.bound_at(2.0), rel=0.01)
    assert made.best_schedule().bound <= problem().best_schedule().bound


def test_a_budget_within_which_nobody_reaches_a_layer_is_a_sentence():
    with pytest.raises(SalfError, match=r"not defined within 1 s.*p_l = 1.*Use more seconds"):
        TradeOff.of(lambda T: 10.0 if T >= 1.5 else np.inf, lambda T: T, 1.0)


def test_a_short_budget_is_spent_on_one_round():
    """In 0.01 s a user hardly ever reaches the first layer, and the bound is defined."""
    made = problem(0.01)
    assert made.best_constant().rounds == 1
    np.testing.assert_allclose(made.best_schedule().deadlines, 0.01)


def test_a_deadline_at_which_nobody_comes_in_most_rounds_is_looked_at():
    made = problem(G2=1e-4)  # noise hardly counts, so that many short rounds are best
    deadline = made.best_constant().deadlines[0]
    assert count_law(erlang_reach(deadline))[0, 0] > 0.5  # p_1
    assert made.best_constant().bound < made.bound_at(1.0)


def test_a_learning_rate_too_large_for_the_bound_is_a_sentence():
    with pytest.raises(SalfError, match="at most 1/rho_c"):
        problem(rate=lambda t: 3.0).best_constant()


def test_what_the_proof_needs_of_the_step_size():
    assert problem().is_proven
    assert problem(rate=lambda t: 0.1).is_proven  # 1/(4 rho_s) = 0.125
    assert not problem(rate=lambda t: 0.2).is_proven
