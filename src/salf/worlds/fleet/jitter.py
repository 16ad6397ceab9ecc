"""How a device's times vary from round to round.

A round of a user is a row of stages: for each local step the layers from the last to the first, the
first stage of a step including the forward pass. `nominal` are the seconds of these stages without
jitter, [users, stages]. A law says when the stages are complete, drawn from the numbers of (seed,
round, user), and the chance that they are complete in time: exactly where there is a closed form.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints
from salf.core.draws import Draws, Purpose, normal

ROUNDING = 1e-9  # of a time, relative to it


class Jitter(ABC):
    """A law of the times of all devices of a fleet."""

    @abstractmethod
    def complete(self, nominal: Floats, draws: Draws, users: Ints) -> Floats:
        """When each stage of each user is complete, in seconds since it began: [users, stages]."""

    def chance(self, nominal: Floats, budget: Floats, users: Ints) -> Floats | None:
        """P(stage complete within `budget`), both [users, stages]; None if it is to be drawn."""
        return None

    def of(self, devices: Ints) -> "Jitter":
        """The law of users who have these devices."""
        return self


class Paced(Jitter):
    """All stages of a round are slower or faster by one factor."""

    @abstractmethod
    def factor(self, draws: Draws, users: Ints) -> Floats:
        """The factor of each user in this round."""

    @abstractmethod
    def below(self, factor: Floats, users: Ints) -> Floats:
        """P(a user's factor is at most so large), [users, stages]."""

    def complete(self, nominal: Floats, draws: Draws, users: Ints) -> Floats:
        return np.asarray(nominal.cumsum(axis=1) * self.factor(draws, users)[:, None])

    def chance(self, nominal: Floats, budget: Floats, users: Ints) -> Floats:
        needed = nominal.cumsum(axis=1)
        # Where nothing is to be done, whatever time is left is enough.
        fits = np.divide(budget, needed, out=np.full_like(budget, np.inf), where=needed > 0)
        return np.where(budget >= 0, self.below(np.where(budget >= 0, fits, 0), users), 0.0)


@dataclass(frozen=True, eq=False)
class LogNormal(Paced):
    """The factor is log-normal with median 1; `sigma` is the spread of its logarithm.

    Without any spread, every round takes the same time.
    """

    sigma: float | Floats = 0.0  # of all devices, or of each

    def __post_init__(self) -> None:
        if not (np.asarray(self.sigma) >= 0).all() or not np.isfinite(self.sigma).all():
            raise SalfError(f"jitter must be a number of at least 0, not {self.sigma}.")

    def factor(self, draws: Draws, users: Ints) -> Floats:
        if not np.any(self.sigma):
            return np.ones(len(users))
        return np.exp(self._sigma(users) * normal(*draws.uniform(users, Purpose.JITTER, 2).T))

    def below(self, factor: Floats, users: Ints) -> Floats:
        sigma = np.broadcast_to(self._sigma(users), len(users))[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.log(factor) / sigma
        # Without any spread, a factor of 1 is just enough.
        enough = (sigma == 0) & (factor >= 1 - ROUNDING)
        return np.where(enough, 1.0, ndtr(np.nan_to_num(z, nan=-np.inf)))

    def of(self, devices: Ints) -> "LogNormal":
        return self if np.ndim(self.sigma) == 0 else LogNormal(np.asarray(self.sigma)[devices])

    def _sigma(self, users: Ints) -> Floats:
        sigma = np.asarray(self.sigma, np.float64)
        return sigma[users] if sigma.ndim else sigma


@dataclass(frozen=True)
class ExponentialLayers(Jitter):
    """Every layer takes an exponential time of its own, independently, of its nominal mean."""

    def complete(self, nominal: Floats, draws: Draws, users: Ints) -> Floats:
        u = draws.uniform(users, Purpose.JITTER, nominal.shape[1])
        return np.asarray((nominal * -np.log1p(-u)).cumsum(axis=1))

    def chance(self, nominal: Floats, budget: Floats, users: Ints) -> Floats | None:
        """The Erlang law, P(k layers within b) = 1 - e^-x sum_{i<k} x^i/i!, x = b over the mean.

        Where layers have different means there is no simple form.
        """
        mean = nominal[:, :1]
        if (mean <= 0).any() or not np.allclose(nominal, mean, rtol=ROUNDING, atol=0):
            return None
        x, stages = np.maximum(budget / mean, 0), np.arange(nominal.shape[1])
        # In logarithms, and x = 0 apart, because powers of a long budget overflow.
        log_factorial = np.log(np.maximum(stages, 1)).cumsum()
        log_x = np.log(np.where(x > 0, x, 1))
        terms = np.exp(stages * log_x[:, :, None] - log_factorial - x[:, :, None])
        missed = (terms * (stages <= stages[:, None])).sum(axis=2)
        return np.where(x > 0, np.clip(1 - missed, 0, 1), 0.0)
