"""How often each user takes part: the share of rounds it reaches a layer in, and FedAU's intervals.

Both are learned from who arrived, whatever the reason for staying away: a slow device, or one that
is switched off. Rounds count in which the user was asked.
"""

from collections.abc import Sequence

import numpy as np
import torch

from salf.core.aggregate import UserId
from salf.core.arrivals import Bools, Floats, Ints
from salf.stages.table import UserTable

Users = Sequence[UserId] | Ints

MEMORY = 0.99  # what a round counts when the user's next one counts 1
PRIOR = 5.0  # rounds for which a user is taken for one like the others


class Participation:
    """The record of every user that was ever asked, by its number (live, its name).

    `reach` estimates P(user u takes part in layer l), shrunk towards the mean of all users.
    `intervals` is FedAU's estimate of 1/P: the mean number of rounds from one time a user takes
    part to the next; an interval ends after `cutoff` rounds at the latest. Both are of the rounds
    before, so that what a user gets does not depend on whether it arrives.
    """

    def __init__(self, layers: int, cutoff: int | None = None) -> None:
        self.cutoff = cutoff or 50
        counts = torch.zeros(layers, dtype=torch.float64)
        # How many rounds each user was asked in, and how many of them it took part in. Of FedAU:
        # the rounds of the present interval, and the ended ones: how many, how long.
        columns = dict.fromkeys(("part", "away", "ended", "length"), counts)
        self._table = UserTable({"asked": counts[:1], **columns})
        self.state, self.load_state = self._table.state, self._table.load_state

    def reach(self, users: Users) -> Floats:
        """P(user u takes part in layer l), [L, users]; strangers are like the others."""
        # Before the first round all are taken for users that always come.
        every = self._column("part").sum(axis=0) + PRIOR
        mean = every / (self._column("asked").sum() + PRIOR)
        asked, part = self._of(users, "asked"), self._of(users, "part")
        return np.asarray((part + PRIOR * mean) / (asked + PRIOR)).T

    def intervals(self, users: Users) -> Floats:
        """The mean length of each user's intervals, [L, users]; 1 before the first has ended."""
        ended, length = (self._of(users, name) for name in ("ended", "length"))
        return np.where(ended > 0, length / np.maximum(ended, 1), 1.0).T

    def learn(self, users: Users, part: Bools) -> None:
        """These users were asked, and took part in some layers: [L, users]."""
        rows, took = self._table.rows(users, add=True), part.T
        asked, parts, away, ended, length = map(self._column, self._table.columns)
        asked[rows] = MEMORY * asked[rows] + 1
        parts[rows] = MEMORY * parts[rows] + took
        now = away[rows] + 1
        ends = took | (now >= self.cutoff)
        ended[rows] += ends
        length[rows] += np.where(ends, now, 0)
        away[rows] = np.where(ends, 0, now)

    def _column(self, name: str) -> Floats:
        column: Floats = self._table.columns[name].numpy()
        return column[: len(self._table.row)]

    def _of(self, users: Users, name: str) -> Floats:
        """The entries of these users; 0 for those not known."""
        known, rows = self._column(name), self._table.rows(users)
        return np.concatenate([known, np.zeros((1, known.shape[1]))])[rows]
