"""Depths, p_l and Lemma 1.

The chi-square tests each reject a true law with probability 1e-4 (ALPHA); the seeds are fixed, so
a run that passed once keeps passing, and a new seed fails once in 10,000 tests.
"""

import numpy as np
import pytest
from scipy import stats

from reference import draw_all, unreached
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.worlds.depth import Mixture, PerUser, Uniform, fixed, given

ALPHA = 1e-4
SEEDS = (1, 2)

SKEWED = PerUser(
    np.array(
        [
            [0.7, 0.1, 0.1, 0.1],
            [0.1, 0.2, 0.3, 0.4],
            [0.25, 0.25, 0.25, 0.25],
            [0.0, 0.05, 0.05, 0.9],
            [0.4, 0.0, 0.6, 0.0],
        ]
    )
)
LAWS = {
    "uniform": Uniform(6, 3),
    "uniform, one layer": Uniform(5, 1),
    "mixture": Mixture(10, 4, 0.7),
    "mixture of stragglers only": Mixture(4, 3, 1.0),
    "per user": SKEWED,
    "given": given([0.2, 0.3, 0.5], 7),
}


def law_of_reach(law, layer):
    """Lemma 1: P(|U^l| = k) for k = 0..U, by convolving one user that may miss it at a time."""
    late = law.stragglers(law.users) if isinstance(law, Mixture) else law.users
    finish, chances = law.users - late, law.reach(law.everybody)[layer - 1]
    found = np.array([*np.zeros(finish), 1.0])
    for chance in chances[:late] if not finish else (chances[:late] * law.users - finish) / late:
        found = np.convolve(found, [1 - chance, chance])
    return found


def p_value_of_counts(law: np.ndarray, drawn: np.ndarray) -> float:
    """Chi-square of drawn |U^l| against a law, rare values joined until 5 are expected."""
    observed = np.bincount(drawn, minlength=len(law)).astype(float)
    expected = law * len(drawn)
    assert observed[law == 0].sum() == 0  # what cannot happen did not
    order = np.argsort(expected)
    rare = order[expected[order].cumsum() < 5]
    kept = np.setdiff1d(np.arange(len(law)), rare)
    if len(rare):
        observed = np.append(observed[kept], observed[rare].sum())
        expected = np.append(expected[kept], expected[rare].sum())
    likely = expected > 0
    observed, expected = observed[likely], expected[likely]
    if len(expected) < 2:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def reach_sizes(law, rounds, seed):
    """|U^l| of many rounds: [rounds, L]."""
    rng = np.random.default_rng(seed)
    return np.array([draw_all(law, rng).reach(law.layers).sum(1) for _ in range(rounds)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAWS)
def test_lemma_1_the_drawn_reach_follows_its_law(name, seed):
    law = LAWS[name]
    sizes = reach_sizes(law, 2000, seed)
    for layer in range(1, law.layers + 1):
        assert p_value_of_counts(law_of_reach(law, layer), sizes[:, layer - 1]) > ALPHA


@pytest.mark.parametrize("wrong", [1, 3])
def test_the_chi_square_test_has_power(wrong):
    """Layer 2's reach against the law of layer 1 or 3 must be rejected."""
    law = Uniform(6, 3)
    sizes = reach_sizes(law, 2000, SEEDS[0])
    assert p_value_of_counts(law_of_reach(law, wrong), sizes[:, 1]) < ALPHA


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_depths_are_uniform_on_1_to_L_plus_1_and_independent_between_users(seed):
    """Per user and for the pair of the first two users; each at ALPHA."""
    rng = np.random.default_rng(seed)
    depth = np.array([draw_all(Uniform(3, 4), rng).depth for _ in range(4000)])
    assert depth.min() == 1
    assert depth.max() == 5
    for user in range(3):
        assert stats.chisquare(np.bincount(depth[:, user] - 1)).pvalue > ALPHA
    pairs = np.bincount((depth[:, 0] - 1) * 5 + depth[:, 1] - 1, minlength=25)
    assert stats.chisquare(pairs).pvalue > ALPHA


@pytest.mark.parametrize("seed", SEEDS)
def test_every_user_is_equally_often_a_straggler_of_the_mixture(seed):
    """Counts per user have the covariance of sampling S of U; chi-square with U - 1 at ALPHA."""
    law, rounds = Mixture(8, 3, 0.5), 3000
    rng = np.random.default_rng(seed)
    counts = sum(draw_all(law, rng).straggler.astype(int) for _ in range(rounds))
    share = law.stragglers(8) / law.users
    variance = rounds * share * (1 - share) * law.users / (law.users - 1)
    statistic = ((counts - rounds * share) ** 2).sum() / variance
    assert stats.chi2.sf(statistic, law.users - 1) > ALPHA


@pytest.mark.parametrize("name", LAWS)
def test_p_l_is_the_chance_of_an_empty_reach(name):
    law = LAWS[name]
    for layer, p in enumerate(unreached(law), 1):
        assert law_of_reach(law, layer)[0] == pytest.approx(p, abs=1e-12)


def test_p_constant_in_numbers():
    """[p_constant] for U = 3, L = 3: (3/4)^3, (2/4)^3, (1/4)^3."""
    np.testing.assert_allclose(unreached(Uniform(3, 3)), [0.421875, 0.125, 0.015625], rtol=1e-15)
    # U = 30 users and the L = 3 layers of the MLP: (3/4)^30, (1/2)^30, (1/4)^30.
    np.testing.assert_allclose(
        unreached(Uniform(30, 3)),
        [1.7858209e-4, 9.3132257e-10, 8.6736174e-19],
        rtol=1e-7,
    )


@pytest.mark.parametrize(
    ("users", "ratio", "stragglers"),
    [(30, 0.3, 9), (30, 0.5, 15), (30, 0.7, 21), (30, 0.9, 27), (5, 0.5, 3), (7, 0, 0), (7, 1, 7)],
)
def test_mixture_straggler_count_is_the_ratio_in_every_round(users, ratio, stragglers):
    law = Mixture(users, 3, ratio)
    assert law.stragglers(users) == stragglers
    rng = np.random.default_rng(0)
    for _ in range(50):
        draw = draw_all(law, rng)
        assert draw.straggler.sum() == stragglers
        assert (draw.depth[~draw.straggler] == 1).all()


def test_busy_users_count_among_the_stragglers():
    law = Mixture(10, 3, 0.5)
    rng = np.random.default_rng(0)
    for _ in range(30):
        draw = draw_all(law, rng, busy=3)
        assert (draw.users, draw.asked) == (7, 10)
        assert draw.straggler.sum() == 2
    # More are busy than the ratio asks for: nobody is added.
    assert draw_all(law, rng, busy=8).straggler.tolist() == [False, False]


def test_fixed_depths_never_change_and_p_is_0_or_1():
    law = fixed([3, 2, 4, 4], 3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert draw_all(law, rng).depth.tolist() == [3, 2, 4, 4]
    assert unreached(law).tolist() == [1, 0, 0]
    assert law.reach(law.everybody)[2].tolist() == [1, 1, 0, 0]
    assert draw_all(law, rng).straggler.all()


def test_reach_is_the_set_of_users_at_or_below_the_layer_and_nested():
    """[ltUsers] for depths 1, 3, 4 and 2 of L = 3."""
    depths = Arrivals(np.array([1, 3, 4, 2]), np.array([False, True, True, True]))
    assert depths.reach(3).astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 1], [1, 1, 0, 1]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mixture(3, 3, 1.5), "not 1.5"),
        (lambda: Mixture(3, 3, float("nan")), "not nan"),
        (lambda: fixed([1, 5], 3), "depth 5 is not one of 1..4"),
        (lambda: fixed([0], 3), "depth 0 is not one of 1..4"),
        (lambda: given([0.5, 0.6], 2), "sum to 1"),
        (lambda: given([1.5, -0.5], 2), ">= 0"),
        (lambda: PerUser(np.array([0.5, 0.5])), "table"),
    ],
)
def test_impossible_laws_are_refused_with_the_value(make, says):
    with pytest.raises(SalfError, match=says):
        make()
