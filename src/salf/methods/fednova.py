"""FedNova: users that took more local steps do not count for more."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Arrivals, Closing, Floats
from salf.methods.base import Method


@dataclass(frozen=True)
class FedNova(Method):
    """The mean of the users' mean gradients, times the mean number of their local steps.

    With tau_u local steps, w <- w - eta tau_eff sum_u p_u G_u / tau_u, where G_u is the sum of the
    user's gradients, p_u its weight, and tau_eff = sum_u p_u tau_u. Users do plain SGD, for which
    ||a_u||_1 = tau_u. Here tau_u is counted layer by layer: a user that is stopped has one gradient
    more of its last layers. The paper normalises whole updates.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", NeurIPS 2020.
    """

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1 / tau_u in the layers the user has."""
        steps = self.gradients(arrived, layers)
        return np.where(steps > 0, 1 / np.maximum(steps, 1), 0.0)

    def divisor(self, closing: Closing) -> Floats:
        """c[l, u] = p_u tau_eff / tau_u with p_u = 1 / |U^l|."""
        return np.where(closing.reached > 0, closing.present / closing.steps, 1.0)
