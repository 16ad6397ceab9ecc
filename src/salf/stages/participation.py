"""How often each user takes part: the share of rounds it reaches a layer in, and FedAU's intervals.

Both are learned from who arrived, whatever the reason for staying away: a slow device, or one that
is switched off. Rounds count in which the user was asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.core.aggregate import UserId
from salf.core.arrivals import Bools, Floats, Ints

MEMORY = 0.99  # what a round counts when the user's next one counts 1
PRIOR = 5.0  # rounds for which a user is taken for one like the others

_ARRAYS = ("asked", "part", "away", "ended", "length")


class Participation:
    """The record of every user that was ever asked, by its number (live, its name).

    `reach` estimates P(user u takes part in layer l), shrunk towards the mean of all users.
    `intervals` is FedAU's estimate of 1/P: the mean number of rounds from one time a user takes
    part to the next; an interval ends after `cutoff` rounds at the latest. Both are of the rounds
    before, so that what a user gets does not depend on whether it arrives.
    """

    def __init__(self, layers: int, cutoff: int | None = None) -> None:
        self.layers, self.cutoff = layers, cutoff or 50
        self._row: dict[UserId, int] = {}
        self.asked = np.zeros((0, 1))  # how many rounds each user was asked in
        self.part = np.zeros((0, layers))  # how many of them it took part in
        # Of FedAU: the rounds of the present interval, and the ended ones: how many, how long.
        self.away = np.zeros((0, layers))
        self.ended = np.zeros((0, layers))
        self.length = np.zeros((0, layers))

    def reach(self, users: Sequence[UserId] | Ints) -> Floats:
        """P(user u takes part in layer l), [L, users]; strangers are like the others."""
        # Before the first round all are taken for users that always come.
        mean = (self.part.sum(axis=0) + PRIOR) / (self.asked.sum() + PRIOR)
        asked, part = (self._of(users, known) for known in (self.asked, self.part))
        return np.asarray((part + PRIOR * mean) / (asked + PRIOR)).T

    def intervals(self, users: Sequence[UserId] | Ints) -> Floats:
        """The mean length of each user's intervals, [L, users]; 1 before the first has ended."""
        ended, length = (self._of(users, known) for known in (self.ended, self.length))
        return np.where(ended > 0, length / np.maximum(ended, 1), 1.0).T

    def learn(self, users: Sequence[UserId] | Ints, part: Bools) -> None:
        """These users were asked, and took part in some layers: [L, users]."""
        rows, took = self._rows(users, add=True), part.T
        self.asked[rows] = MEMORY * self.asked[rows] + 1
        self.part[rows] = MEMORY * self.part[rows] + took
        away = self.away[rows] + 1
        ends = took | (away >= self.cutoff)
        self.ended[rows] += ends
        self.length[rows] += np.where(ends, away, 0)
        self.away[rows] = np.where(ends, 0, away)

    def state(self) -> tuple[list[UserId], dict[str, Tensor]]:
        return list(self._row), {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}

    def load_state(self, users: Sequence[UserId], arrays: Mapping[str, Tensor]) -> None:
        self._row = {user: row for row, user in enumerate(users)}
        for name in _ARRAYS:
            if arrays[name].shape != (len(users), getattr(self, name).shape[1]):
                raise ValueError("the recorded participation is of other users or layers")
            setattr(self, name, np.array(arrays[name].numpy(), np.float64))

    def _of(self, users: Iterable[Any], known: Floats) -> Floats:
        """The entries of these users; 0 for those not known."""
        return np.concatenate([known, np.zeros((1, known.shape[1]))])[self._rows(users)]

    def _rows(self, users: Iterable[Any], add: bool = False) -> Ints:
        given = [user.item() if isinstance(user, np.generic) else user for user in users]
        if add and (new := [user for user in given if user not in self._row]):
            for user in new:
                self._row[user] = len(self._row)
            for name in _ARRAYS:
                old = getattr(self, name)
                more = np.zeros((len(new), old.shape[1]))
                setattr(self, name, np.concatenate([old, more]))
        return np.array([self._row.get(user, -1) for user in given], np.int64)
