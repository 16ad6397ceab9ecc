"""Deadlines that minimise the theorem's bound for a budget of seconds: a constant, and ADEL-FL's.

With Delta_t = E |w_t - w_opt|^2, the theorem's proof has the recursion

    Delta_{t+1} <= (1 - rho_c eta_t) Delta_t + eta_t^2 (B + C_t),
    E F(w_t) - F(w_opt) <= rho_s / 2 Delta_t,

where C_t = G^2 * spread depends on the deadline of round t through p_l. Unrolled over R rounds it
is Delta_{R+1} <= P D + sum_t a_t (B + C_t), with D = |w_1 - w_opt|^2, P = prod_t (1 - rho_c eta_t)
and a_t = eta_t^2 prod_{i>t} (1 - rho_c eta_i). So the problem of ADEL-FL,

    minimise  sum_t a_t C(T_t)    subject to  sum_t seconds(T_t) <= budget,

has one term per round and one constraint: at a given price of a second every round has its own best
deadline, and bisection finds the price that uses the budget up.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.server import theorem_rate
from salf.theory.bounds import Constants, Federation, layer_spread

MOST_ROUNDS = 20_000
TRIED = 24  # numbers of rounds
BISECTIONS = 60
PRICES = 100.0  # log of the largest price of a second
SLACK = 1 + 1e-9  # of what is compared with the budget: sums are rounded


def theorem_spread(unreached: Floats, users: int) -> float:
    """C_t / G^2, the sum over layers in the proof of Lemma 3: 4U/(U-1) sum_l (1 + p_l)/(1 - p_l).

    With all p_l at their largest it is the theorem's [C_constant]. inf if a p_l is 1. (The authors'
    script for ADEL-FL has 1 - 2 p_l below the line.)
    """
    return sum(layer_spread(users, 1 - each) for each in unreached.tolist())


@dataclass(frozen=True, eq=False)
class DeadlineBound:
    """The bound after a budget of seconds, for the deadlines of a grid."""

    federation: Federation
    constants: Constants
    distance2: float  # D = |w_1 - w_opt|^2
    budget: float
    deadlines: Floats
    seconds: Floats  # that a round with each of them takes
    spread: Floats  # C / G^2 with each of them

    def bound(self, spread: Floats) -> float:
        """The bound after rounds with these values of C_t / G^2."""
        left, weights = self._unrolled(len(spread))
        noise = self.constants.B(self.federation) + self.constants.G2 * spread
        return float(self.constants.rho_s / 2 * (left * self.distance2 + (weights * noise).sum()))

    def constant(self) -> tuple[Floats, float]:
        """The best deadline for all rounds, as many as fit in the budget, and its bound."""
        rounds = np.minimum(self.budget * SLACK / self.seconds, MOST_ROUNDS).astype(int)
        both = zip(rounds.tolist(), self.spread.tolist(), strict=True)
        bounds = [self.bound(np.full(count, each)) if count else np.inf for count, each in both]
        best = int(np.argmin(bounds))
        return np.full(max(1, rounds[best]), self.deadlines[best]), bounds[best]

    def schedule(self) -> tuple[Floats, float]:
        """A deadline for every round and the number of rounds, as in ADEL-FL, and the bound."""
        shortest = self.seconds[np.isfinite(self.spread)].min(initial=self.budget)
        most = min(MOST_ROUNDS, int(self.budget * SLACK / shortest))
        counts = np.unique(np.geomspace(1, max(1, most), TRIED).astype(int)).tolist()
        return min([self.constant(), *map(self._of_rounds, counts)], key=lambda plan: plan[1])

    def _of_rounds(self, rounds: int) -> tuple[Floats, float]:
        """The best deadlines of so many rounds, by bisection on the price of a second."""
        worth = np.outer(self._unrolled(rounds)[1], self.spread)

        def chosen(price: float) -> tuple[Ints, bool]:
            places = (worth + price * self.seconds).argmin(axis=1)
            return places, bool(self.seconds[places].sum() <= self.budget * SLACK)

        low, high = -PRICES, PRICES  # on a log scale
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if chosen(np.exp(middle))[1] else (middle, high)
        places, fits = chosen(np.exp(high))
        return self.deadlines[places], self.bound(self.spread[places]) if fits else np.inf

    @cached_property
    def _eta(self) -> Floats:
        rate = theorem_rate(self.constants.rho_c, self.constants.rho_s)
        return np.array([rate(t) for t in range(1, MOST_ROUNDS + 1)])

    def _unrolled(self, rounds: int) -> tuple[float, Floats]:
        """P and a_1..a_R."""
        eta = self._eta[:rounds]
        kept = 1 - self.constants.rho_c * eta
        after = np.concatenate([np.cumprod(kept[:0:-1])[::-1], [1.0]])
        return float(after[0] * kept[0]), eta**2 * after
