"""p_l learned while rounds go by: how often nobody reached a layer, or from each user's reach."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.core.arrivals import Floats
from salf.worlds.fleet.learned import LearnedReach

MOST = 0.75  # no step is stretched more than by 1/(1 - MOST): stable rather than unbiased


class ReachEstimate:
    """p_l as the share of rounds in which nobody reached layer l.

    That needs no assumption about the users: those who differ in speed, depend on each other,
    come or go are counted as they are. Rounds count less the older they are, so the estimate
    follows devices that change. It begins as if everybody had reached every layer for some
    rounds, and these never fade: so neither the first rounds nor an empty one blow up a step.
    """

    MEMORY = 0.98  # what a round counts, when the one after it counts 1
    BEFORE = 5.0  # rounds in which everybody had reached every layer

    def __init__(self, layers: int) -> None:
        self.empty = np.zeros(layers)
        self.rounds = 0.0

    def learn(self, depths: Mapping[str, int], seconds: float | None = None) -> None:
        """Take in a round: the depth of every user in the first local step."""
        nobody = np.arange(1, len(self.empty) + 1) < min(depths.values())
        self.empty = self.MEMORY * self.empty + nobody
        self.rounds = self.MEMORY * self.rounds + 1

    def unreached(self, users: Collection[str] = (), seconds: float | None = None) -> Floats:
        """p_l for l = 1..L, as far as the rounds so far tell."""
        return np.asarray(np.minimum(self.empty / (self.rounds + self.BEFORE), MOST))

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """What was learned."""
        return [self.rounds, self.empty.tolist()], {}

    def load_state(self, plain: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue with what another server learned."""
        rounds, empty = plain
        if len(empty) != len(self.empty):
            raise ValueError("its layers differ")
        self.rounds, self.empty = float(rounds), np.asarray(empty, np.float64)


class UserReach:
    """P(user u reaches layer l by T), learned for every user by its name.

    Unlike `ReachEstimate` it knows about deadlines that were not tried, so p_l follows a deadline
    that changes; but it takes users for independent. `done_after` are the parts of a round's work
    that are done when each layer is complete, from the last layer to the first. The speed of users
    is unknown: the prior is wide, and around the first deadline. Without a deadline, users have the
    time they need, and nothing is learned.
    """

    PRIOR, WIDEST = 2.0, 6.0

    def __init__(self, done_after: Floats) -> None:
        self.names: dict[str, int] = {}  # the number of each
        self.reference = 0.0  # seconds; 0 before the first deadline
        self._model = LearnedReach(done_after[None], self.PRIOR, self.WIDEST)
        self._known = self._model.start(0)

    def learn(self, depths: Mapping[str, int], seconds: float | None) -> None:
        """Take in a round: the depth of every user in the first local step, at this deadline."""
        if seconds is None:
            return
        self.reference = self.reference or seconds
        for name in depths:
            self.names.setdefault(name, len(self.names))
        new = self._model.start(len(self.names) - self._known.shape[1])
        self._known = np.concatenate([self._known, new], axis=1)
        users = np.array([self.names[name] for name in depths], np.int64)
        values = np.array(list(depths.values()), np.int64)
        self._known = self._model.learn(self._known, users, seconds / self.reference, values)

    def reach(self, users: Collection[str], seconds: float | None) -> Floats:
        """The chances at any deadline, [L, users]; users not seen before are like the others."""
        if seconds is None:
            return np.ones((self._model.nominal.shape[1], len(users)))
        numbers = np.array([self.names.get(user, len(self.names)) for user in users], np.int64)
        known = np.concatenate([self._known, self._model.start(1)], axis=1)
        return self._model.reach(known, numbers, seconds / (self.reference or seconds))

    def unreached(self, users: Collection[str], seconds: float | None) -> Floats:
        """p_l for these users."""
        return np.asarray(np.minimum((1 - self.reach(users, seconds)).prod(axis=1), MOST))

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """What was learned: the users' names, the reference, and a tensor."""
        return [list(self.names), self.reference], {"known": torch.from_numpy(self._known)}

    def load_state(self, plain: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue with what another server learned."""
        (names, reference), known = plain, tensors["known"].numpy()
        if known.shape != (self._model.hypotheses, len(names)):
            raise ValueError("the learned reach has a different shape")
        self.names = {name: number for number, name in enumerate(names)}
        self.reference, self._known = float(reference), known
