"""FedAU: inverse probability, learned from how long users stay away (Wang and Ji, 2024)."""

from dataclasses import dataclass

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import limited
from salf.methods.family import PerLayerOrWhole


@dataclass(frozen=True)
class FedAU(PerLayerOrWhole):
    """A user's share is the mean interval between the rounds it takes part in.

    This estimates 1/pi without any knowledge of the users. Intervals are cut off after `cutoff`
    rounds, which is therefore the largest share.
    """

    cutoff: int = limited(50, least=1)

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """The mean interval so far."""
        return (self.gradients(arrived, layers) > 0) * arrived.interval(self.cutoff)

    def divisor(self, closing: Closing) -> Floats:
        """The number of users asked."""
        return closing.asked
