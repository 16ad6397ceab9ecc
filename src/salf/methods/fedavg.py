"""FedAvg with no deadline: the server waits for everybody. The ceiling of all other methods."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.depth import Depths, Floats
from salf.methods.base import Synchronous


@dataclass(frozen=True)
class FedAvg(Synchronous):
    """The mean over all users [FedAvg_update]."""

    name: ClassVar[str] = "fedavg"
    waits: ClassVar[bool] = True

    def weights(self, depths: Depths, unreached: Floats) -> Floats:
        """[FedAvg_update]: c[l, u] = 1/U."""
        return np.full((len(unreached), depths.users), 1 / depths.users)
