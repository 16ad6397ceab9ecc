"""What methods without rounds have in common: a step whenever so many updates have arrived."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.arrivals import Arrivals, Floats, Ints
from salf.methods.base import Method
from salf.worlds import World


@dataclass(frozen=True)
class Buffering(Method):
    """The server takes a step after `size` updates, each computed on the model its user was given.

    That needs a clock which says in which order updates arrive, so a fleet.
    """

    needs_clock: ClassVar[bool] = True
    simulated_only: ClassVar[str] = "its users deliver updates of older models"

    @property
    def size(self) -> int:
        """How many updates make a step."""
        return 1

    @property
    def has_deadline(self) -> bool:
        """A step is taken when enough updates are there."""
        return False

    @property
    def uses_reach(self) -> bool:
        """No: who arrived is enough."""
        return False

    def world(self, world: World) -> World:
        """Users deliver when they are done."""
        return world.buffered(self.size)


def polynomial(age: Ints, power: float) -> Floats:
    """(1 + staleness)^-power."""
    return np.asarray((1.0 + age) ** -power)


def hinge(age: Ints, slope: float, tolerated: float) -> Floats:
    """1 up to the tolerated staleness, then 1 / (slope (staleness - tolerated) + 1)."""
    return np.asarray(1 / (slope * np.maximum(age - tolerated, 0.0) + 1))


def of_whole_updates(arrived: Arrivals, layers: int, weight: Floats) -> Floats:
    """These shares for the users that finished, in every layer: [L, users]."""
    return np.tile(np.where(arrived.finished, weight, 0.0), (layers, 1))
