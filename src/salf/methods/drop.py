"""Drop-stragglers: only users that finished before the deadline count."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.depth import Depths, Floats
from salf.methods.base import Synchronous


@dataclass(frozen=True)
class Drop(Synchronous):
    """The mean over the users that finished [fl_updateStr]; nothing moves if nobody did."""

    name: ClassVar[str] = "drop"

    def weights(self, depths: Depths, unreached: Floats) -> Floats:
        """[fl_updateStr]: c[l, u] = 1[u in U_t] / |U_t|, U_t the users that are no stragglers.

        In the experiments' mixture a straggler misses the deadline by definition, also one whose
        depth happens to be 1; in every other distribution a straggler is who has d > 1.
        """
        finished = (~depths.straggler).astype(np.float64)
        over = depths.users if self.average == "all" else max(1.0, finished.sum())
        return np.tile(finished / over, (len(unreached), 1))
