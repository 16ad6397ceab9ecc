"""AsyncFL: stragglers finish late, on the model they were given, and are averaged when they do."""

from dataclasses import dataclass
from typing import Literal

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Floats
from salf.methods.base import Averaging, limited
from salf.methods.family import of_whole_updates, polynomial
from salf.worlds.base import World

Stale = Literal["difference", "model"]


@dataclass(frozen=True)
class AsyncFL(Averaging):
    """A straggler of depth d is busy for `delay` * d rounds, then delivers its full update.

    A baseline of the paper, whose "participates in the averaging" can be read in two ways: the
    server adds the user's change to its old model (`stale="difference"`), or averages the changed
    old model with the others (`stale="model"`). Updates weigh (1 + staleness)^-`discount`.

    On a fleet, which has a clock, a user that misses the deadline delivers in the round in which it
    finishes, and `delay` does not apply. With a `buffer`, there are no deadlines: the server takes
    a step whenever that many updates have arrived.
    """

    delay: int | None = limited(None, least=1)  # 2
    stale: Stale = "difference"
    discount: float = limited(0.0, least=0)
    buffer: int | None = limited(None, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay is not None and self.buffer is not None:
            raise SalfError("with a buffer, users deliver when they are done: leave out delay.")

    @property
    def average_models(self) -> bool:
        """The second reading of "participates in the averaging"."""
        return self.stale == "model"

    def world(self, world: World) -> World:
        """Stragglers deliver late."""
        return world.late(self.delay) if self.buffer is None else world.buffered(self.buffer)

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """The stale count for less, in the sum and in what it is divided by."""
        return of_whole_updates(arrived, layers, polynomial(arrived.age, self.discount))
