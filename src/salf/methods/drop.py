"""Drop-stragglers: only users that finished before the deadline count."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from salf.depth import Depths, Floats
from salf.errors import unknown
from salf.methods.base import Synchronous

Lucky = Literal["dropped", "kept"]


@dataclass(frozen=True)
class Drop(Synchronous):
    """The mean over the users that finished [fl_updateStr]; nothing moves if nobody did.

    In the experiments' mixture a straggler's depth may happen to be 1. `lucky` says whether it is
    "dropped" like every straggler, which is what the published table shows, or "kept".
    """

    lucky: Lucky = "dropped"

    name: ClassVar[str] = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lucky not in get_args(Lucky):
            raise unknown("way with lucky stragglers", self.lucky, get_args(Lucky))

    def weights(self, depths: Depths, unreached: Floats) -> Floats:
        """[fl_updateStr]: c[l, u] = 1[u in U_t] / |U_t|, U_t the users that met the deadline."""
        in_time = depths.depth == 1 if self.lucky == "kept" else ~depths.straggler
        finished = in_time.astype(np.float64)
        over = depths.users if self.average == "all" else max(1.0, finished.sum())
        return np.tile(finished / over, (len(unreached), 1))
