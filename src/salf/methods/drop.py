"""Drop-stragglers, the paper's baseline: only users that finished before the deadline count."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from salf.core.arrivals import Arrivals, Floats
from salf.methods.base import Averaging

Lucky = Literal["dropped", "kept"]


@dataclass(frozen=True)
class Drop(Averaging):
    """The mean over the users that finished [fl_updateStr]; no step is taken if nobody did.

    c[l, u] = 1[u in U_t] / |U_t|, U_t being the users that met the deadline.

    In the paper's mixture, a straggler's depth may be 1. `lucky` says whether such a straggler is
    "dropped" like the others, as in the published table, or "kept".
    """

    lucky: Lucky = "dropped"

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1 for the users that met the deadline, in every layer."""
        in_time = arrived.finished if self.lucky == "kept" else ~arrived.straggler
        return np.tile(in_time.astype(np.float64), (layers, 1))
