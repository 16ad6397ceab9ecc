"""FedVARP: new updates correct the mean of remembered ones (Jhunjhunwala et al., 2022)."""

from dataclasses import dataclass

from salf.core.arrivals import Closing, Floats
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class FedVARP(WithMemory):
    """The mean of all users' last updates, plus the mean change in those that arrived.

    If all users arrive with equal probability, this is unbiased and has less variance than the mean
    of those that arrived.
    """

    def divisor(self, closing: Closing) -> Floats:
        """Users who arrived."""
        return closing.weight
