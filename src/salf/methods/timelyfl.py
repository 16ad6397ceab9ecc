"""TimelyFL: every user is assigned the local steps, or the last layers, that fit into the round."""

from dataclasses import dataclass

from salf.methods.base import Method, limited
from salf.worlds.base import World


@dataclass(frozen=True)
class TimelyFL(Method):
    """A round lasts until a fraction `fastest` of the users have done the planned local steps.

    Faster users repeat these steps as many times as fit, at most `most`. Slower users are assigned
    as many steps, and as many layers of the last one, as fit. Each layer is averaged over the users
    that trained it. What fits is decided before the round, by devices that know their times in it:
    the best case of the paper's real-time estimate.

    Zhang et al., "TimelyFL: Heterogeneity-aware Asynchronous Federated Learning with Adaptive
    Partial Training", CVPR workshops 2023. There, a slow user trains the last layers in all of its
    local steps.
    """

    fastest: float = limited(0.5, above=0, most=1)
    most: int = limited(1000, least=1)

    def world(self, world: World) -> World:
        """Users are assigned the work that fits."""
        return world.timely(self.fastest, self.most)
