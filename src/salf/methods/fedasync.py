"""FedAsync: every model that arrives is mixed into the server's; a stale one counts for less."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.core.rules import LocalRule, Proximal
from salf.methods.base import Average, Method
from salf.methods.events import hinge, of_whole_updates, polynomial
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

    alpha: float = 0.9
    staleness: Staleness = "polynomial"
    power: float = 0.5
    slope: float = 10.0
    tolerated: float = 4.0
    rho: float = 0.005

    average: ClassVar[Average] = "reached"  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise SalfError(f"alpha of FedAsync must be in (0, 1], not {self.alpha}.")
        for name in ("power", "slope", "tolerated", "rho"):
            if not getattr(self, name) >= 0:
                raise SalfError(f"{name} of FedAsync must be at least 0.")

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
        if self.staleness == "polynomial":
            factor = polynomial(arrived.age, self.power)
        elif self.staleness == "hinge":
            factor = hinge(arrived.age, self.slope, self.tolerated)
        else:
            factor = np.ones(arrived.users)
        return of_whole_updates(arrived, layers, self.alpha * factor)

    def divisor(self, closing: Closing) -> Floats:
        """The user's weight, so that c[l, u] = alpha s(tau)."""
        return np.where(closing.reached > 0, closing.present, 1.0)
