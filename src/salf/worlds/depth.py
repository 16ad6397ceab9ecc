"""How far users get: distributions of depth, and p_l, the probability that nobody reaches a layer.

A depth d in {1..L+1} means the gradients of layers d..L were ready at the deadline. |U^l| counts
the users with d <= l [ltUsers]; p_l = P(|U^l| = 0) [p_constant].
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from salf.common.errors import SalfError, unknown
from salf.core.arrivals import Arrivals, Floats, Ints
from salf.core.draws import Draws, Purpose


class DepthDistribution(ABC):
    """The distribution of the users' depths in a round, for `users` users and `layers` layers."""

    users: int
    layers: int

    @abstractmethod
    def draw(self, draws: Draws, users: Ints, busy: int = 0) -> Arrivals:
        """Draw one round of these users.

        `busy` other users still work on an earlier round; they have no entry and are stragglers.
        """

    def reach(self, users: Ints) -> Floats:
        """P(user u reaches layer l) if these users take part, [L, users]."""
        raise unknown_reach(self)

    def unreached(self, users: Ints) -> Floats:
        """p_l = prod_u P(d_u > l): the probability that none of these users reaches layer l.

        That is for users who are independent; others define it.
        """
        return np.asarray((1 - self.reach(users)).prod(axis=1))

    @property
    def everybody(self) -> Ints:
        """All users."""
        return np.arange(self.users)


@dataclass(frozen=True)
class Uniform(DepthDistribution):
    """Every user's depth is uniform on {1..L+1}, independently (assumption AS4).

    So |U^l| ~ Bin(U, l/(L+1)) [binom_rv].
    """

    users: int
    layers: int

    def draw(self, draws: Draws, users: Ints, busy: int = 0) -> Arrivals:
        depth = _uniform(draws.uniform(users, Purpose.DEPTH)[:, 0], self.layers)
        return Arrivals(depth, asked=len(users) + busy, user=users)

    def reach(self, users: Ints) -> Floats:
        layer = np.arange(1, self.layers + 1)
        return np.tile((layer / (self.layers + 1))[:, None], len(users))

    def unreached(self, users: Ints) -> Floats:
        """[p_constant]: p_l = (1 - l/(L+1))^U, U being the users that take part."""
        layer = np.arange(1, self.layers + 1)
        return np.asarray((1 - layer / (self.layers + 1)) ** len(users))


@dataclass(frozen=True)
class Mixture(DepthDistribution):
    """The paper's experiments: in each round, a ratio of the users is drawn to be stragglers.

    Stragglers have a uniform depth on {1..L+1}; the others finish.
    """

    users: int
    layers: int
    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise SalfError(f"the ratio of stragglers must be in [0, 1], not {self.ratio}.")

    def stragglers(self, users: int) -> int:
        """How many of so many users are stragglers, in every round."""
        return floor(self.ratio * users + 0.5)

    def draw(self, draws: Draws, users: Ints, busy: int = 0) -> Arrivals:
        """Make as many users stragglers as are missing from the ratio, busy ones included."""
        missing = max(0, self.stragglers(len(users) + busy) - busy)
        straggler = np.zeros(len(users), np.bool_)
        score, place = draws.uniform(users, Purpose.DEPTH, 2).T
        straggler[np.argsort(score, kind="stable")[:missing]] = True
        depth = _uniform(place, self.layers)
        return Arrivals(np.where(straggler, depth, 1), straggler, len(users) + busy, user=users)

    def reach(self, users: Ints) -> Floats:
        ratio = self.stragglers(len(users)) / max(1, len(users))
        return np.tile((1 - ratio + ratio * self._reach())[:, None], len(users))

    def unreached(self, users: Ints) -> Floats:
        """0 as long as one user finishes; with only stragglers, [p_constant]."""
        if self.stragglers(len(users)) < len(users):
            return np.zeros(self.layers)
        return np.asarray((1 - self._reach()) ** len(users))

    def _reach(self) -> Floats:
        """The chance that a straggler reaches layer l, l = 1..L."""
        return np.arange(1, self.layers + 1) / (self.layers + 1)


class PerUser(DepthDistribution):
    """Independent users, each with its own probabilities of depth 1..L+1, [users, L + 1]."""

    def __init__(self, probabilities: Floats) -> None:
        table = np.asarray(probabilities, np.float64)
        if table.ndim != 2 or table.shape[1] < 2:
            raise SalfError("probabilities of depth must be a table of users x (layers + 1).")
        if (table < 0).any() or not np.allclose(table.sum(1), 1, atol=1e-9):
            raise SalfError("probabilities of depth must be >= 0 and sum to 1 for every user.")
        self.probabilities = table / table.sum(1, keepdims=True)
        self.users, self.layers = len(table), table.shape[1] - 1

    def draw(self, draws: Draws, users: Ints, busy: int = 0) -> Arrivals:
        """Draw every user's depth by inverting its cumulative probabilities."""
        cumulative = self.probabilities[users].cumsum(1)[:, :-1]
        depth = 1 + (draws.uniform(users, Purpose.DEPTH) >= cumulative).sum(1)
        return Arrivals(depth, asked=len(users) + busy, user=users)

    def reach(self, users: Ints) -> Floats:
        return np.asarray(self.probabilities[users].cumsum(1)[:, :-1].clip(0, 1)).T


def given(probabilities: Sequence[float], users: int) -> PerUser:
    """All users share one probability vector over the depths 1..L+1."""
    return PerUser(np.tile(np.asarray(probabilities, np.float64), (users, 1)))


def fixed(depths: Sequence[float], layers: int) -> PerUser:
    """Fixed depths in every round: a layer nobody reaches has p_l = 1 and is never updated."""
    if outside := [depth for depth in depths if depth not in range(1, layers + 2)]:
        raise SalfError(f"depth {outside[0]:g} is not one of 1..{layers + 1} ({layers} layers).")
    return PerUser(np.eye(layers + 1)[np.asarray(depths, np.int64) - 1])


def unknown_reach(of: object) -> SalfError:
    """The error where a law or a world has no `reach`."""
    return SalfError(
        f"{type(of).__name__} does not say how likely each user is to reach a layer: set "
        "reach = counted."
    )


def _uniform(place: Floats, layers: int) -> Ints:
    """Numbers in [0, 1) as depths on {1..L+1}."""
    return np.asarray(1 + (place * (layers + 1)).astype(np.int64))


DEPTHS = ("mixture", "uniform", "fixed:D1,...", "probabilities:P1,...")


def is_named(spec: str) -> bool:
    """Whether this is one of `DEPTHS`, and not one of your own."""
    return spec.partition(":")[0] in ("mixture", "uniform", "fixed", "probabilities")


def has_ratio(spec: str) -> bool:
    """Whether a distribution, as people write it, depends on the ratio of stragglers."""
    return spec == "mixture" or not is_named(spec)  # one of your own may take it


def parse(spec: str, users: int, layers: int, ratio: float) -> DepthDistribution:
    """Read a distribution as people write it: one of `DEPTHS`. `ratio` is the mixture's."""
    kind, _, rest = spec.partition(":")
    try:
        numbers = tuple(float(number) for number in rest.split(",") if rest)
    except ValueError:
        raise SalfError(
            f"cannot read the numbers in {spec!r}: separate them with commas."
        ) from None
    if spec == "mixture":
        return Mixture(users, layers, ratio)
    if spec == "uniform":
        return Uniform(users, layers)
    if kind == "fixed" and numbers:
        return fixed(numbers, layers)
    if kind == "probabilities" and numbers:
        return given(numbers, users)
    raise unknown("distribution of depth", spec, DEPTHS)
