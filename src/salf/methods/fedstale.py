"""FedStale: inverse probability and memory together (Rodio and Neglia, 2024)."""

from dataclasses import dataclass

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.family import WithMemory, inverse


@dataclass(frozen=True)
class FedStale(WithMemory):
    """Inverse probability with memory, which enters a step with the factor `recall`.

    With `recall` 0 this is inverse probability, with 1 FedVARP with the right weights; both are
    unbiased, and so is everything between. No share is above 1/`floor`.
    """

    recall: float = 0.5
    floor: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.recall <= 1 and 0 < self.floor <= 1):
            raise SalfError(
                f"fedstale needs recall in [0, 1] and floor in (0, 1], not {self.recall} and "
                f"{self.floor}."
            )

    @property
    def beta(self) -> float:
        """The recall."""
        return self.recall

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1/max(pi, floor)."""
        return inverse(self, arrived, layers, self.floor)

    def divisor(self, closing: Closing) -> Floats:
        """The number of users asked."""
        return closing.asked
