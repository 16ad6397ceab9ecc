"""p_l learned while rounds go by: how often nobody reached a layer, lately."""

from collections.abc import Sequence

import numpy as np

from salf.arrivals import Floats


class ReachEstimate:
    """p_l as the share of rounds in which nobody reached layer l.

    That needs no assumption about the users: those who differ in speed, depend on each other,
    come or go are counted as they are. Rounds count less the older they are, so the estimate
    follows devices that change. It begins as if everybody had reached every layer for some
    rounds, and these never fade: so neither the first rounds nor an empty one blow up a step. Nor
    does a layer that was not reached for long: no step is stretched more than by 1/(1 - `MOST`),
    which is stable rather than unbiased.
    """

    MEMORY = 0.98  # what a round counts, when the one after it counts 1
    BEFORE = 5.0  # rounds in which everybody had reached every layer
    MOST = 0.75

    def __init__(self, layers: int) -> None:
        self.empty = np.zeros(layers)
        self.rounds = 0.0

    def unreached(self) -> Floats:
        """p_l for l = 1..L, as far as the rounds so far tell."""
        return np.asarray(np.minimum(self.empty / (self.rounds + self.BEFORE), self.MOST))

    def learn(self, reached: Sequence[int]) -> None:
        """Take in a round: how many users reached each layer."""
        self.empty = self.MEMORY * self.empty + (np.asarray(reached) == 0)
        self.rounds = self.MEMORY * self.rounds + 1
