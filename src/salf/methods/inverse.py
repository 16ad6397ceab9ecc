"""Inverse probability: a user that rarely reaches a layer counts for more when it does."""

from dataclasses import dataclass
from typing import ClassVar

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import limited
from salf.methods.family import PerLayerOrWhole


@dataclass(frozen=True)
class InverseProbability(PerLayerOrWhole):
    """A user that reaches layer l with probability pi[l, u] gets the share 1/pi[l, u].

    The sum is divided by the number of users (Horvitz and Thompson), so the step is unbiased for
    any speeds, as long as every user reaches every layer sometimes. With `normalised`, it is
    divided by the sum of the shares instead (Hájek): a small bias for less variance. No share is
    above 1/`floor`; this bounds the variance, and biases the step if pi is smaller than `floor`.
    """

    normalised: bool = False
    floor: float = limited(0.05, above=0, most=1)

    name: ClassVar[str] = "inverse"

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1/max(pi, floor)."""
        return self.inverse(arrived, layers, self.floor)

    def divisor(self, closing: Closing) -> Floats:
        """The number of users asked, or the sum of the shares."""
        return closing.weight if self.normalised else closing.asked
