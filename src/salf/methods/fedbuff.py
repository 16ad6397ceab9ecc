"""FedBuff: the server takes a step after every K updates; stale updates count for less."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import limited
from salf.methods.family import Buffering, of_whole_updates, polynomial


@dataclass(frozen=True)
class FedBuff(Buffering):
    """w <- w - eta_g / K sum_u s(tau_u) Delta_u after every K = `buffer` updates.

    s(tau) = (1 + tau)^-`discount`, where tau is the number of steps that the server took since the
    user received its model. The sum is divided by K, not by the sum of s, so a stale update makes
    the step smaller. eta_g and momentum are the server's (`--lr`, `--momentum`); users have their
    own rate (`--client-lr`). A user that has delivered starts again at the next step.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
    """

    discount: float = limited(0.5, least=0)

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """s(tau)."""
        return of_whole_updates(arrived, layers, polynomial(arrived.age, self.discount))

    def divisor(self, closing: Closing) -> Floats:
        """K: c[l, u] = s(tau_u) / K."""
        return np.where(closing.reached > 0, closing.present, 1.0)
