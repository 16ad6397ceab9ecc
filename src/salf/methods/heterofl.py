"""HeteroFL: stragglers train a narrower network and finish in time (Diao et al., 2021)."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import Averaging, Narrow, limited
from salf.worlds.base import World


@dataclass(frozen=True)
class HeteroFL(Averaging):
    """Stragglers train the first fraction `width` of every hidden layer, other users all of it.

    Each entry of a parameter is averaged over the users whose network contains it. Running
    statistics of batch norm come from full-width users only, because a narrow network has different
    activations (HeteroFL itself keeps no running statistics during training).
    """

    width: float = limited(0.5, above=0, most=1)

    def world(self, world: World) -> World:
        """Stragglers finish: they have less to do."""
        return world.narrowed(self.width)

    def divisor(self, closing: Closing) -> Floats:
        """1: each entry is divided by the weight of its holders; or U, whoever holds what."""
        return closing.asked if self.average == "all" else np.ones(len(closing.shares))

    def narrow(self, t: int) -> Narrow:
        """The first units; an entry is averaged over the users that hold it, if not over all."""
        return Narrow(entrywise=self.average == "reached")

    def widths(self, arrived: Arrivals) -> Floats:
        """Full width, and the stragglers' width."""
        return np.where(arrived.straggler, self.width, 1.0)
