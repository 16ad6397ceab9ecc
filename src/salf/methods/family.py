"""The base of methods that weigh users by how often they take part, or remember their updates.

With a share a[l, u], a scale s[l] and the remembered gradient y[l, u] of each user, they all have
the step

    s_l sum_{u arrived} a[l, u] (g[l, u] - beta y[l, u])  +  beta mean_u y[l, u]
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Bools, Floats
from salf.methods.base import Average, Method, Recalled


@dataclass(frozen=True)
class PerLayerOrWhole(Method):
    """A method that treats every layer separately, with the users that reached it.

    With `whole`, only users that finished take part, as in the papers, which use whole updates.
    """

    whole: bool = False

    average: ClassVar[Average] = "reached"  # type: ignore[misc]

    def counts(self, arrived: Arrivals, layers: int) -> Bools:
        """Who reached the layer, or who finished."""
        if self.whole:
            return np.tile(arrived.finished, (layers, 1))
        return arrived.reach(layers)

    def chance(self, arrived: Arrivals, layers: int) -> Floats:
        """P(user u takes part in layer l)."""
        if arrived.chance is None:
            raise SalfError(f"{self.name} needs to know how likely each user is to take part.")
        if self.whole:  # a user that reached layer 1 has finished
            return np.tile(arrived.chance[0], (layers, 1))
        return arrived.chance


def inverse(method: PerLayerOrWhole, arrived: Arrivals, layers: int, floor: float) -> Floats:
    """1/max(pi, floor) for those who take part: [L, users]."""
    return method.counts(arrived, layers) / np.maximum(method.chance(arrived, layers), floor)


@dataclass(frozen=True)
class WithMemory(PerLayerOrWhole):
    """A method that remembers the last update of every user.

    A remembered update has the weight fade / (fade + age), one half after `fade` rounds. With
    `fade` None it does not fade, as in the papers; with 0 nothing is remembered. At most `remember`
    users are remembered, each taking as much memory as the model.
    """

    fade: float | None = 20.0
    remember: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fade is not None and not self.fade >= 0:
            raise SalfError(f"the fade of {self.name} must be at least 0, not {self.fade}.")
        if self.remember < 1:
            raise SalfError(f"{self.name} must remember at least one user, not {self.remember}.")

    @property
    def beta(self) -> float:
        """How much of what is remembered enters a step."""
        return 1.0

    def memory(self) -> Recalled:
        """The last update of every user."""
        return Recalled(self.beta, self.fade, self.remember)
