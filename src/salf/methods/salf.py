"""SALF: every layer is averaged over the users whose backpropagation reached it."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Closing, Floats
from salf.methods.base import Averaging


@dataclass(frozen=True)
class SALF(Averaging):
    """The layer-wise average of the paper (Lang, Cohen, Shlezinger) [salf_update_rule]."""

    def divisor(self, closing: Closing) -> Floats:
        """[salf_update_rule]: c[l, u] = 1[d_u <= l] / (|U^l| (1 - p_l))."""
        if self.average == "all":  # the authors' script, which has no p_l either
            return closing.asked
        # An empty U^l has no weight to divide; only such a layer may have p_l = 1.
        return np.where(closing.shares > 0, closing.shares * (1 - closing.unreached), 1.0)
