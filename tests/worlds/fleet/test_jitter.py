"""Laws of times against their closed forms.

Each comparison of a drawn share with a chance allows 4.5 standard errors, which a right law exceeds
with a chance of about 7e-6.
"""

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.worlds.fleet.jitter import ExponentialLayers, LogNormal

DRAWS = 40_000
NOMINAL = np.array([0.5, 0.5, 0.5])
BUDGETS = np.array([0.3, 0.9, 1.2, 1.7, 2.5, 4.0])


def close(share, chance, draws=DRAWS):
    error = 4.5 * np.sqrt(np.clip(chance * (1 - chance), 1e-4, None) / draws)
    assert (np.abs(share - chance) <= error).all(), (share, chance)


@pytest.mark.parametrize(
    "law",
    [LogNormal(0.4), LogNormal(np.full(DRAWS, 0.4)), ExponentialLayers()],
)
@pytest.mark.parametrize("budget", BUDGETS)
def test_stages_are_complete_as_often_as_the_closed_form_says(law, budget):
    users, nominal = np.arange(DRAWS), np.tile(NOMINAL, (DRAWS, 1))
    complete = law.complete(nominal, Keyed(3, 1), users)
    assert (np.diff(complete, axis=1) >= 0).all()
    chance = law.chance(nominal[:1], np.full((1, 3), budget), users[:1])
    close((complete <= budget).mean(axis=0), chance[0])


def test_the_chances_by_hand():
    one, nominal = np.array([0]), NOMINAL[None]
    budget = np.full((1, 3), 1.2)
    # P(Poisson(2.4) >= k): 1 - e^-2.4, 1 - e^-2.4 (1 + 2.4), 1 - e^-2.4 (1 + 2.4 + 2.88)
    e = np.exp(-2.4)
    np.testing.assert_allclose(
        ExponentialLayers().chance(nominal, budget, one)[0], [1 - e, 1 - 3.4 * e, 1 - 6.28 * e]
    )
    assert LogNormal(0.4).chance(nominal, np.array([[0.5, 1.0, 1.5]]), one)[0] == pytest.approx(0.5)
    assert LogNormal().chance(nominal, np.array([[0.5, 0.9, -1.0]]), one)[0].tolist() == [1, 0, 0]


def test_erlang_chances_hold_for_long_budgets_and_many_layers():
    nominal, one = np.full((1, 60), 0.01), np.array([0])
    chance = ExponentialLayers().chance(nominal, np.full((1, 60), 100.0), one)
    assert chance == pytest.approx(1)
    none = ExponentialLayers().chance(nominal, np.full((1, 60), -1.0), one)
    assert not none.any()


def test_a_negative_control_is_rejected():
    """The tolerance would notice a spread of 0.46 in place of 0.4."""
    users, nominal = np.arange(DRAWS), np.tile(NOMINAL, (DRAWS, 1))
    complete = LogNormal(0.46).complete(nominal, Keyed(3, 1), users)
    chance = LogNormal(0.4).chance(nominal[:1], np.full((1, 3), 0.9), users[:1])
    with pytest.raises(AssertionError):
        close((complete <= 0.9).mean(axis=0), chance[0])


def test_a_negative_spread_is_refused():
    with pytest.raises(SalfError):
        LogNormal(-0.1)
