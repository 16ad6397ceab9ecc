"""FedAvg without a deadline: the server waits for all users. The reference for other methods."""

from dataclasses import dataclass

from salf.core.arrivals import Closing, Floats
from salf.methods.base import Method
from salf.worlds.base import World


@dataclass(frozen=True)
class FedAvg(Method):
    """The mean over all users [FedAvg_update]."""

    def world(self, world: World) -> World:
        """The server waits for everybody."""
        return world.waiting()

    def divisor(self, closing: Closing) -> Floats:
        """[FedAvg_update]: c[l, u] = 1/U; live, a user that failed is not one of them."""
        return closing.weight
