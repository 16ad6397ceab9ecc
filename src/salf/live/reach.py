"""p_l learned while rounds go by: how often users reached each layer, lately."""

from collections.abc import Sequence

import numpy as np

from salf.depth import Floats


class ReachEstimate:
    """The chance that a user reaches a layer, smoothed, and from it p_l.

    Every round counts for `memory` times what the round after it does, so the estimate follows
    devices that change. It starts as if one user had reached the layer and one had not, so that
    neither the first rounds nor one in which nobody got there blow up a step.
    """

    def __init__(self, layers: int, memory: float = 0.98) -> None:
        self.memory = memory
        self.reached = np.ones(layers)
        self.asked = 2.0

    def unreached(self, users: int) -> Floats:
        """p_l if so many users are asked: the chance that none of them reaches layer l."""
        return np.asarray((1 - self.reached / self.asked) ** users)

    def learn(self, reached: Sequence[int], asked: int) -> None:
        """Take in a round: how many of the users asked reached each layer."""
        self.reached = self.memory * self.reached + np.asarray(reached, np.float64)
        self.asked = self.memory * self.asked + asked
