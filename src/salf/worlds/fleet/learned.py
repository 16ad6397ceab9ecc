"""Reach learned during a run: P(user u reaches layer l by T) from the depths seen so far.

The time at which a user completes a milestone is log-normal. It is the milestone's nominal time
times a pace of the user's own, so a deadline that was never tried can be predicted too. Depths say
this about the pace:

    depth d, 1 < d <= L    time(d) <= T < time(d - 1)
    depth 1                time(1) <= T
    depth L + 1            T < time(L)

All three are censored observations, and enter the likelihood as such. Every user has a grid of
hypotheses (median pace, spread, whether stages vary together or independently) with their log
likelihoods. The prior is around the nominal times and, more and more, what the other users are
found to be: a user with few observations is taken for one of the fleet.
"""

from typing import Any

import numpy as np
import torch

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints

SPREADS = (0.05, 0.08, 0.12, 0.18, 0.27, 0.4, 0.6, 0.9, 1.4)  # of the log time of a whole round
MEMORY = 0.99  # what an observation counts when its user's next one counts 1
OUTLIERS = 0.02  # the part of the observations that follow no law, such as hiccups
MOST_USERS = 10_000
AT_ONCE = 2**21  # chances that are computed at a time


class LearnedReach:
    """Reach of users whose milestones nominally take these times.

    `nominal[u, k]` are the seconds after which user u has completed the k-th of its layers, from
    the last one to the first; a single row is that of all users. What was learned is an array
    [hypotheses, users] that begins as `start`; `learn` and `reach` are functions of it.

    The prior of the pace is log-normal around 1 with spread `prior`; paces from 1/e^`widest` to
    e^`widest` are told apart. `memory` below 1 lets old observations fade.
    """

    def __init__(
        self, nominal: Floats, prior: float = 0.5, widest: float = 2.4, memory: float = MEMORY
    ) -> None:
        if len(nominal) > MOST_USERS:
            raise SalfError(
                f"reach can be learned for up to {MOST_USERS} users, not {len(nominal)}: use "
                "reach = known."
            )
        if not ((nominal > 0) & np.isfinite(nominal)).all():
            raise SalfError("reach can only be learned if every layer takes a time above 0.")
        self.nominal, self.memory = nominal, memory
        grid = np.meshgrid(np.linspace(-widest, widest, 61), SPREADS, [0.0, 1.0], indexing="ij")
        self._paces, self._spreads, self._independent = (values.ravel() for values in grid)
        weights = np.exp(-((self._paces / prior) ** 2) / 2)
        self._weights: Floats = weights / weights.sum()
        self._last: tuple[Any, Floats] | None = None

    @property
    def hypotheses(self) -> int:
        return len(self._paces)

    def start(self, users: int | None = None) -> Floats:
        """Nothing is known: [hypotheses, users]."""
        return np.zeros((self.hypotheses, len(self.nominal) if users is None else users))

    def learn(self, known: Floats, users: Ints, seconds: float, depths: Ints) -> Floats:
        """The knowledge after these users had these depths at the deadline; `known` is left as is.

        With local steps, the depth is that of the first step.
        """
        layers = self.nominal.shape[1]
        count = layers + 1 - depths  # milestones that were completed
        found = known.copy()
        for part in self._parts(users):
            by = self._chances(users[part], seconds)
            rows = np.arange(by.shape[0])
            sure, never = np.ones((by.shape[0], 1, by.shape[2])), np.zeros_like(by[:, :1])
            edges = np.concatenate([sure, by, never], axis=1)
            chance = edges[rows, count[part]] - edges[rows, count[part] + 1]
            chance = (1 - OUTLIERS) * chance + OUTLIERS / (layers + 1)
            found[:, users[part]] = self.memory * known[:, users[part]] + np.log(chance).T
        return found

    def reach(self, known: Floats, users: Ints, seconds: float) -> Floats:
        """P(user u reaches layer l by any deadline): [L, users]."""
        posterior = self._posterior(known)
        reach = np.empty((self.nominal.shape[1], len(users)))
        for part in self._parts(users):
            by = self._chances(users[part], seconds)
            own = np.ascontiguousarray(posterior[:, users[part]].T)
            reach[:, part] = (by @ own[:, :, None])[:, :, 0].T
        return np.clip(reach[::-1], 0, 1)

    def _posterior(self, known: Floats) -> Floats:
        """The weights of the hypotheses, [hypotheses, users]: one step of empirical Bayes.

        The prior of a user is that of one user, and what each of the others seems to be.
        """
        likelihood = np.exp(known - known.max(axis=0))
        alone = likelihood * self._weights[:, None]
        alone = alone / alone.sum(axis=0) * known.any(axis=0)
        others = alone.sum(axis=1, keepdims=True) - alone
        posterior = likelihood * (self._weights[:, None] + np.maximum(others, 0))
        return np.asarray(posterior / posterior.sum(axis=0))

    def _chances(self, users: Ints, seconds: float) -> Floats:
        """P(milestone k by then) under every hypothesis: [users, L, hypotheses]."""
        key = (float(seconds), users.tobytes())
        if self._last is not None and self._last[0] == key:  # a deadline may be constant
            return self._last[1]
        times = self.nominal[users] if len(self.nominal) > 1 else self.nominal
        stages = np.diff(times, axis=1, prepend=0.0)
        # Independent stages: the relative spread of their sum, compared with that of all of them.
        relative = np.sqrt((stages**2).cumsum(axis=1)) / times
        relative = (relative / relative[:, -1:])[:, :, None]
        spread = self._spreads * relative**self._independent
        # Equal means, so the median of a sum of few stages is lower.
        shift = (spread**2 - self._spreads**2) / 2
        z = (np.log(max(seconds, 1e-300) / times)[:, :, None] - self._paces + shift) / spread
        chance = torch.special.ndtr(torch.from_numpy(z)).numpy()
        for k in range(1, chance.shape[1]):  # a later milestone is never more likely
            np.minimum(chance[:, k], chance[:, k - 1], out=chance[:, k])
        chance = np.broadcast_to(chance, (len(users), *chance.shape[1:]))
        self._last = key, chance
        return chance

    def _parts(self, users: Ints) -> list[slice]:
        size = max(1, AT_ONCE // (self.hypotheses * self.nominal.shape[1]))
        return [slice(begin, begin + size) for begin in range(0, len(users), size)]
