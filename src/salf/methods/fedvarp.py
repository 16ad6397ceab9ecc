"""FedVARP: what arrives corrects the mean of what is remembered (Jhunjhunwala et al., 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from salf.arrivals import Closing, Floats
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class FedVARP(WithMemory):
    """The mean of what users sent last, and the mean of what is new of those who arrived.

    If users arrive with equal probability, it is unbiased, with less variance than their mean.
    """

    name: ClassVar[str] = "fedvarp"

    def divisor(self, closing: Closing) -> Floats:
        """Those who arrived."""
        return closing.weight
