"""The base of methods without rounds: the server takes a step after a number of updates."""

from dataclasses import dataclass

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Floats, Ints
from salf.methods.base import Method
from salf.worlds.base import World


@dataclass(frozen=True)
class Buffering(Method):
    """The server takes a step after `buffer` updates, each on the model its user was given.

    The clock determines the order in which updates arrive.
    """

    buffer: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer < 1:
            raise SalfError(f"the buffer of {type(self).__name__} must be at least 1.")

    def world(self, world: World) -> World:
        """Users deliver when they are done."""
        return world.buffered(self.buffer)


def polynomial(age: Ints, power: float) -> Floats:
    """(1 + staleness)^-power."""
    return np.asarray((1.0 + age) ** -power)


def hinge(age: Ints, slope: float, tolerated: float) -> Floats:
    """1 up to the tolerated staleness, then 1 / (slope (staleness - tolerated) + 1)."""
    return np.asarray(1 / (slope * np.maximum(age - tolerated, 0.0) + 1))


def of_whole_updates(arrived: Arrivals, layers: int, weight: Floats) -> Floats:
    """These shares for the users that finished, in every layer: [L, users]."""
    return np.tile(np.where(arrived.finished, weight, 0.0), (layers, 1))
