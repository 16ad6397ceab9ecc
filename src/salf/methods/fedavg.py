"""FedAvg without a deadline: the server waits for all users. The reference for other methods."""

from dataclasses import dataclass
from typing import ClassVar

from salf.core.arrivals import Closing, Floats
from salf.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """The mean over all users [FedAvg_update]."""

    name: ClassVar[str] = "fedavg"
    waits: ClassVar[bool] = True

    @property
    def uses_reach(self) -> bool:
        """No: who arrived is enough."""
        return False

    def divisor(self, closing: Closing) -> Floats:
        """[FedAvg_update]: c[l, u] = 1/U; live, a user that failed is not one of them."""
        return closing.weight
