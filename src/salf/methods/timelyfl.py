"""TimelyFL: every user is assigned the local steps, or the last layers, that fit into the round."""

from dataclasses import dataclass
from typing import Literal

from salf.methods.base import Method, limited
from salf.worlds.base import World

Times = Literal["expected", "measured"]


@dataclass(frozen=True)
class TimelyFL(Method):
    """A round lasts until a fraction `fastest` of the users have done the planned local steps.

    Faster users repeat these steps as many times as fit, at most `most`. Slower users are assigned
    as many steps, and as many layers of the last one, as fit. Each layer is averaged over the users
    that trained it. What fits is decided before the round. With `times="measured"`, every device
    knows its times in this round, which is the best case of the paper's real-time estimate. With
    "expected", it knows only its mean times, and a user that turns out slower delivers nothing.

    Zhang et al., "TimelyFL: Heterogeneity-aware Asynchronous Federated Learning with Adaptive
    Partial Training", CVPR workshops 2023. There, a slow user trains the last layers in all of its
    local steps.
    """

    fastest: float = limited(0.5, above=0, most=1)
    times: Times = "measured"
    most: int = limited(1000, least=1)

    def world(self, world: World) -> World:
        """Users are assigned the work that fits."""
        return world.timely(self.fastest, self.times == "measured", self.most)
