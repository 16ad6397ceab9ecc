"""FedProx: local steps stay near the server's model; stragglers send the steps they completed."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Arrivals, Ints
from salf.core.rules import LocalRule, Proximal
from salf.methods.base import Method, limited


@dataclass(frozen=True)
class FedProx(Method):
    """The mean over all users with at least one complete local step.

    Local steps follow the gradient of F_u(w) + mu/2 ||w - w_t||^2, which is that of F_u in the
    first step. A user that is stopped delivers its complete steps; with one local step FedProx
    drops stragglers. mu = 1 is the authors' choice for MNIST and FEMNIST; they suggest tuning it
    in {0.001, 0.01, 0.1, 0.5, 1}.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """

    mu: float = limited(1.0, least=0)

    def local_rule(self, steps: int) -> LocalRule | None:
        """The term mu (w - w_t), which is 0 in the first step."""
        return Proximal(self.mu) if self.mu and steps > 1 else None

    def gradients(self, arrived: Arrivals, layers: int) -> Ints:
        """Gradients of complete steps only."""
        return np.tile(super().gradients(arrived, layers).min(axis=0), (layers, 1))
