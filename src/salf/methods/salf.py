"""SALF: every layer is averaged over the users whose backpropagation reached it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.depth import Depths, Floats
from salf.methods.base import Synchronous


@dataclass(frozen=True)
class SALF(Synchronous):
    """The layer-wise average of the paper [salf_update_rule]."""

    name: ClassVar[str] = "salf"

    def weights(self, depths: Depths, unreached: Floats) -> Floats:
        """[salf_update_rule]: c[l, u] = 1[d_u <= l] / (|U^l| (1 - p_l))."""
        reach = depths.reach(len(unreached)).astype(np.float64)
        if self.average == "all":  # the authors' script, which has no p_l either
            return np.asarray(reach / depths.users)
        size = reach.sum(axis=1)  # |U^l|
        # An empty U^l has no weight to scale; only such a layer may have p_l = 1.
        scale = np.where(size > 0, np.maximum(size, 1) * (1 - unreached), 1.0)
        return np.asarray(reach / scale[:, None])
