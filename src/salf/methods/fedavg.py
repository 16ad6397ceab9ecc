"""FedAvg (McMahan et al., 2017) without a deadline: the server waits for all users."""

from dataclasses import dataclass

from salf.methods.base import Method
from salf.worlds.base import World


@dataclass(frozen=True)
class FedAvg(Method):
    """The mean over all users [FedAvg_update]: c[l, u] = 1/U.

    Live, a user that failed is not one of them.
    """

    def world(self, world: World) -> World:
        """The server waits for everybody."""
        return world.waiting()
