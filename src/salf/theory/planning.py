"""Deadlines that minimise the bound: T_1..T_R for a budget of seconds, and the best constant T_max.

The problem is ADEL-FL's. With Delta_t = E |w_t - w_opt|^2, the theorem's proof has the recursion

    Delta_{t+1} <= (1 - rho_c eta_t) Delta_t + eta_t^2 (B + C_t),
    E F(w_t) - F(w_opt) <= rho_s / 2 Delta_t,

where C_t = G^2 * spread depends on the deadline of round t through the law of |U^l|. Unrolled over
R rounds it is Delta_{R+1} <= P D + sum_t a_t (B + C_t), with D = |w_1 - w_opt|^2,
P = prod_t (1 - rho_c eta_t) and a_t = eta_t^2 prod_{i>t} (1 - rho_c eta_i). So the problem

    minimise  sum_t a_t C(T_t)    subject to  sum_t seconds(T_t) <= budget

has one term per round and one constraint, and no general solver is needed: at a given price of a
second every round has its own best deadline, and bisection finds the price that uses the budget up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Floats
from salf.core.server import Schedule, theorem_rate
from salf.theory.bounds import Constants, Federation, layer_spread

Curve = Callable[[float], float]  # of the deadline

POINTS = 160  # deadlines at which the law is looked at
BISECTIONS = 40
MOST_ROUNDS = 100_000
FEWEST = 1e-9  # of the budget: no deadline is shorter
RAREST = 1e-4  # deadlines with which a layer is reached in fewer rounds are not looked at
CLOSE = 1e-9  # what is as close as this is equal: deadlines are found by bisection


def count_law(reach: Floats) -> Floats:
    """The law of |U^l| for users that reach layer l independently, with chances [L, U]: [L, U+1].

    Lemma 1 [binom_rv] is the case in which all users are alike. P(|U^l| = 0) is p_l.
    """
    layers, users = reach.shape
    law = np.zeros((layers, users + 1))
    law[:, 0] = 1
    for u in range(users):
        one = reach[:, u, None]
        law[:, 1 : u + 2] = law[:, 1 : u + 2] * (1 - one) + law[:, : u + 1] * one
        law[:, 0] *= 1 - reach[:, u]
    return law


def theorem_spread(law: Floats) -> float:
    """C_t / G^2, the sum over layers in the proof of Lemma 3: 4U/(U-1) sum_l (1 + p_l)/(1 - p_l).

    With all p_l at their largest it is the theorem's [C_constant]. inf if a p_l is 1. (The authors'
    script for ADEL-FL has 1 - 2 p_l below the line.)
    """
    users, reached = law.shape[1] - 1, law[:, 1:].sum(axis=1)
    return sum(layer_spread(users, each) for each in reached.tolist())


def sharp_spread(law: Floats) -> float:
    """C_t / G^2 before the proof of Lemma 3 drops |U^l| [second_summond_bound].

    sum_l p_l + (1-p_l)^-2 sum_K P(|U^l| = K) (4U/(U-1) (1/K - 1/U) + p_l^2): it rewards a layer
    for every user that reaches it, not only for the first. inf if a p_l is 1.
    """
    p, users, reached = law[:, 0], law.shape[1] - 1, law[:, 1:].sum(axis=1)
    if not reached.all():
        return np.inf
    each = 4 * users / (users - 1) * (1 / np.arange(1, users + 1) - 1 / users)
    noise = (law[:, 1:] * (each + p[:, None] ** 2)).sum(axis=1)
    return float((p + noise / reached**2).sum())


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The price and worth of a deadline: at each, the mean seconds of a round and C / G^2."""

    deadlines: Floats  # increasing, as are the seconds
    seconds: Floats
    spread: Floats

    @classmethod
    def of(cls, spread: Curve, seconds: Curve, budget: float) -> "TradeOff":
        """Look at deadlines from the shortest that is worth it (`RAREST`) up to the budget."""
        last = spread(budget)
        if not np.isfinite(last):
            raise SalfError(
                f"the bound is not defined within {budget:g} s: nobody ever reaches some layer "
                "(p_l = 1). Use more seconds or a faster fleet."
            )
        least = first_time(lambda T: spread(T) <= max(last, 4 / RAREST), budget)
        flat = first_time(lambda T: spread(T) <= last * (1 + 1e-6) + 1e-9, budget, least)
        # Beyond `flat` a deadline costs more and gives nothing: a few are there for the curve.
        flat = max(flat, least * (1 + CLOSE))
        beyond = np.geomspace(flat, max(budget, flat), POINTS // 8)
        tried = np.unique(np.concatenate([np.geomspace(least, flat, POINTS), beyond]))
        cost, found = (np.array([f(T) for T in tried]) for f in (seconds, spread))
        kept = np.concatenate([[True], np.diff(cost) > 0]) & np.isfinite(found)
        return cls(tried[kept], cost[kept], np.minimum.accumulate(found[kept]))

    def at(self, seconds: Floats) -> tuple[Floats, Floats]:
        """The deadline of rounds of so many seconds, and C / G^2; inf if they are too short."""
        deadlines = np.interp(seconds, self.seconds, self.deadlines)
        spread = np.interp(seconds, self.seconds, self.spread)
        return deadlines, np.where(seconds < self.seconds[0] * (1 - CLOSE), np.inf, spread)

    @cached_property
    def hull(self) -> tuple[Floats, Floats]:
        """(seconds, spread) at the corners of the lower convex hull of the curve."""
        s, c, hull = self.seconds, self.spread, list[int]()
        for i in range(len(s)):
            while len(hull) > 1:
                a, b = hull[-2:]
                if (c[b] - c[a]) * (s[i] - s[a]) < (c[i] - c[a]) * (s[b] - s[a]):
                    break
                hull.pop()
            hull.append(i)
        return s[hull], c[hull]


@dataclass(frozen=True, eq=False)
class Deadlines:
    """A plan: the deadlines of its rounds, and the bound on E F(w) - F(w_opt) after them."""

    deadlines: Floats
    bound: float

    @property
    def rounds(self) -> int:
        return len(self.deadlines)


@dataclass(frozen=True, eq=False)
class BoundProblem:
    """Find the deadlines that minimise the bound after a budget of seconds."""

    federation: Federation
    constants: Constants
    distance2: float  # D = |w_1 - w_opt|^2
    trade: TradeOff
    budget: float
    rate: Schedule | None = None  # eta_t; by default the theorem's

    @cached_property
    def eta(self) -> Floats:
        """The step sizes of rounds 1, 2, ..., for which the recursion must contract."""
        rho_c, rho_s = self.constants.rho_c, self.constants.rho_s
        rate, most = self.rate or theorem_rate(rho_c, rho_s), self.most_rounds
        eta = np.fromiter((rate(t) for t in range(1, most + 1)), np.float64, most)
        if (rho_c * eta > 1).any():
            raise SalfError(
                f"the bound is not defined for a learning rate of {eta.max():g} with rho_c = "
                f"{rho_c:g}: it must be at most 1/rho_c."
            )
        return eta

    @property
    def is_proven(self) -> bool:
        """Whether step sizes are at most 1/(4 rho_s), as the proof needs; the theorem's are."""
        return bool(self.eta.max() <= 1 / (4 * self.constants.rho_s) * (1 + CLOSE))

    @cached_property
    def most_rounds(self) -> int:
        """As many as the shortest deadline allows."""
        return max(1, min(MOST_ROUNDS, int(self.budget / self.trade.seconds[0] * (1 + CLOSE))))

    def bound_at(self, deadline: float) -> float:
        """The bound of one deadline for all rounds, as many as fit in the budget; inf if none."""
        seconds = float(np.interp(deadline, self.trade.deadlines, self.trade.seconds))
        rounds = min(MOST_ROUNDS, int(self.budget / seconds * (1 + CLOSE)))
        if deadline < self.trade.deadlines[0] * (1 - CLOSE) or rounds < 1:
            return np.inf
        fixed, noise = (each[rounds - 1] for each in self._after)
        return float(fixed + noise * self.trade.at(np.array([seconds]))[1][0])

    def best_constant(self) -> Deadlines:
        """One deadline for all rounds: of every number of rounds the longest that fits."""
        deadlines, spread = self.trade.at(self.budget / np.arange(1, self.most_rounds + 1))
        fixed, noise = self._after
        best = int(np.argmin(values := fixed + noise * spread))
        return Deadlines(np.full(best + 1, deadlines[best]), float(values[best]))

    def best_schedule(self) -> Deadlines:
        """A deadline for every round, and how many rounds: the best of a search over R."""
        plan = lru_cache(maxsize=None)(self.schedule_of)
        tried = np.unique(np.geomspace(1, self.most_rounds, 60).astype(int)).tolist()
        best = min(tried, key=lambda rounds: plan(rounds).bound)
        step = max(1, best // 8)
        while step:
            near = [r for r in (best - step, best + step) if 1 <= r <= self.most_rounds]
            better = min([best, *near], key=lambda rounds: plan(rounds).bound)
            best, step = better, step if better != best else step // 2
        # A search over R may just miss the best constant deadline.
        return min(plan(best), self.best_constant(), key=lambda plan: plan.bound)

    def schedule_of(self, rounds: int) -> Deadlines:
        """The best deadlines of so many rounds: by bisection on the price of a second."""
        _, weights = self._unrolled(rounds)
        s, c = self.trade.hull
        slopes = -np.diff(c) / np.diff(s)  # what a second buys on each edge, less and less

        def spent(price: float) -> Floats:
            # Every round buys the edges that are worth more than they cost.
            with np.errstate(over="ignore"):  # a round that hardly counts buys none
                return np.asarray(s[np.searchsorted(-slopes, -price / weights, side="left")])

        if rounds * s[0] > self.budget * (1 + CLOSE):
            raise SalfError(f"{rounds} rounds do not fit in {self.budget:g} s.")
        low, high = 0.0, float(slopes.max(initial=0.0) * weights.max())
        seconds = spent(low)
        if seconds.sum() > self.budget:
            for _ in range(200):
                middle = (low + high) / 2
                low, high = (low, middle) if spent(middle).sum() <= self.budget else (middle, high)
            # Some rounds are just worth their next edge: they get as much of it as is left.
            less, more = spent(high), spent(low)
            room = more.sum() - less.sum()
            seconds = less + (more - less) * ((self.budget - less.sum()) / room if room > 0 else 0)
        deadlines, spread = self.trade.at(seconds)
        return Deadlines(deadlines, self.bound(spread))

    def bound(self, spreads: Floats) -> float:
        """The bound after as many rounds as there are values of C_t / G^2."""
        left, weights = self._unrolled(len(spreads))
        noise = self.constants.B(self.federation) + self.constants.G2 * spreads
        gap = left * self.distance2 + float(weights @ noise)
        return float(self.constants.rho_s / 2 * gap)

    def _unrolled(self, rounds: int) -> tuple[float, Floats]:
        """prod_t (1 - rho_c eta_t), and a_t."""
        eta = self.eta[:rounds]
        kept = 1 - self.constants.rho_c * eta
        after = np.concatenate([np.cumprod(kept[:0:-1])[::-1], [1.0]])
        return float(after[0] * kept[0]), eta**2 * after

    @cached_property
    def _after(self) -> tuple[Floats, Floats]:
        """After 1..R rounds, the bound without C_t, and what a constant C_t / G^2 is multiplied by.

        The first is of prod_t (1 - rho_c eta_t) and sum_t a_t, the second of the latter alone.
        """
        kept = 1 - self.constants.rho_c * self.eta
        total, totals = 0.0, np.empty(len(kept))
        for t, (keep, square) in enumerate(zip(kept.tolist(), (self.eta**2).tolist(), strict=True)):
            total = keep * total + square
            totals[t] = total
        constants, left = self.constants, np.cumprod(kept)
        fixed = left * self.distance2 + totals * constants.B(self.federation)
        return constants.rho_s / 2 * fixed, constants.rho_s / 2 * (totals * constants.G2)


def first_time(enough: Callable[[float], bool], end: float, start: float | None = None) -> float:
    """The shortest time from which on it is enough, up to `end`, by bisection on a log scale."""
    low, high = np.log(start or FEWEST * end), np.log(end)
    if enough(float(np.exp(low))):
        return float(np.exp(low))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(float(np.exp(middle))) else (middle, high)
    return float(np.exp(high))
