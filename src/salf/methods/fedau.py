"""FedAU: inverse probability, learned from how long users stay away (Wang and Ji, 2024)."""

from dataclasses import dataclass

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.family import PerLayerOrWhole


@dataclass(frozen=True)
class FedAU(PerLayerOrWhole):
    """A user's share is the mean interval between the rounds it takes part in.

    This estimates 1/pi without any knowledge of the users. Intervals are cut off after `cutoff`
    rounds, which is therefore the largest share.
    """

    cutoff: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cutoff < 1:
            raise SalfError(f"the cutoff of fedau must be at least 1, not {self.cutoff}.")

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """The mean interval so far."""
        return self.counts(arrived, layers) * arrived.interval(self.cutoff)

    def divisor(self, closing: Closing) -> Floats:
        """The number of users asked."""
        return closing.asked
