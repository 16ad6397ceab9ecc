"""FedAsync: every model that arrives is mixed into the server's; a stale one counts for less."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.core.rules import LocalRule, Proximal
from salf.methods.base import Method, limited
from salf.methods.family import of_whole_updates, polynomial
from salf.worlds.base import World

Staleness = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True)
class FedAsync(Method):
    """w <- (1 - a) w + a w_u for every user's model w_u, with a = alpha s(tau).

    s(tau) is 1 (`staleness="constant"`), (1 + tau)^-`power` ("polynomial"), or 1 if
    tau <= `tolerated` else 1 / (`slope` (tau - `tolerated`) + 1) ("hinge"). Users' local steps have
    a proximal term, `rho` (w - w_t). docs/methods.md says where the defaults come from. Use no
    momentum. If users have their own rate, the server's rate multiplies alpha.

    Xie et al., "Asynchronous Federated Optimization", OPT 2020.
    """

    alpha: float = limited(0.9, above=0, most=1)
    staleness: Staleness = "polynomial"
    power: float = limited(0.5, least=0)
    slope: float = limited(10.0, least=0)
    tolerated: float = limited(4.0, least=0)
    rho: float = limited(0.005, least=0)

    @property
    def average_models(self) -> bool:
        """Models are mixed, not differences."""
        return True

    def world(self, world: World) -> World:
        """A step for every update."""
        return world.buffered(1)

    def local_rule(self, steps: int) -> LocalRule | None:
        """The term rho (w - w_t), which is 0 in the first step."""
        return Proximal(self.rho) if self.rho and steps > 1 else None

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """alpha s(tau)."""
        factor: Floats | float = 1.0
        if self.staleness == "polynomial":
            factor = polynomial(arrived.age, self.power)
        elif self.staleness == "hinge":
            factor = 1 / (self.slope * np.maximum(arrived.age - self.tolerated, 0.0) + 1)
        return of_whole_updates(arrived, layers, self.alpha * factor)

    def divisor(self, closing: Closing) -> Floats:
        """The user's weight, so that c[l, u] = alpha s(tau)."""
        return np.where(closing.reached > 0, closing.present, 1.0)
