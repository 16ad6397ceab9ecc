"""p_l learned while rounds go by: how often nobody reached a layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from salf.core.arrivals import Floats

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

    def learn(self, depths: Sequence[int]) -> None:
        """Take in a round: the depth of every user in the first local step."""
        nobody = np.arange(1, len(self.empty) + 1) < min(depths)
        self.empty = self.MEMORY * self.empty + nobody
        self.rounds = self.MEMORY * self.rounds + 1

    def unreached(self) -> Floats:
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
