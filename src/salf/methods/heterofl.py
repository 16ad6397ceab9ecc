"""HeteroFL: stragglers train a narrower network, in time, instead of the full one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.depth import Ints
from salf.errors import SalfError
from salf.methods.base import Group, Method, Plan, Round


@dataclass(frozen=True)
class HeteroFL(Method):
    """Stragglers hold the first share `width` of every hidden layer, the rest all of it.

    Each entry of a parameter is averaged over the users whose network holds it. Running
    statistics of batch norm come from full-width users only: a narrow network's activations are
    another network's (HeteroFL itself keeps no running statistics while training).
    """

    width: float = 0.5

    name: ClassVar[str] = "heterofl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.width <= 1:
            raise SalfError(f"the width of HeteroFL must be in (0, 1], not {self.width}.")

    def plan(self, round: Round, memory: Ints) -> tuple[Plan, Ints]:
        """Two groups on this round's model: full width, and the stragglers' width."""
        straggler = round.depth.draw(round.rng).straggler
        layers = len(round.unreached)
        # Counts, divided entry by entry by the holders; or by all users, whoever holds what.
        each = 1.0 if self.average == "reached" else 1 / len(straggler)
        full = np.tile(np.where(straggler, 0.0, each), (layers, 1))
        narrow = np.tile(np.where(straggler, each, 0.0), (layers, 1))
        groups = (Group.of(full, round.t), Group.of(narrow, round.t, self.width))
        return Plan(groups, entrywise=self.average == "reached"), memory
