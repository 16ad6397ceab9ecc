"""FedStale: inverse probability and memory together (Rodio and Neglia, 2024)."""

from dataclasses import dataclass

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import Recalled, limited
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class FedStale(WithMemory):
    """Inverse probability with memory, which enters a step with the factor `recall`.

    With `recall` 0 this is inverse probability, with 1 FedVARP with the right weights; both are
    unbiased, and so is everything between. No share is above 1/`floor`.
    """

    recall: float = limited(0.5, least=0, most=1)
    floor: float = limited(0.05, above=0, most=1)

    def memory(self) -> Recalled:
        """The last update of every user, with beta = `recall`."""
        return Recalled(self.recall, self.fade, self.remember)

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1/max(pi, floor)."""
        return self.inverse(arrived, layers, self.floor)

    def divisor(self, closing: Closing) -> Floats:
        """The number of users asked."""
        return closing.asked
