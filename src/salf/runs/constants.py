"""Estimates of the theorem's constants, from a few gradients of the model as it is initialised.

The theorem bounds them over all models, for convex losses. What a few gradients tell is how large
they are at w_1, which is all there is before training: estimates, not bounds.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints, evenly
from salf.core.draws import Keyed
from salf.data.sampling import Batches
from salf.engines.losses import user_losses
from salf.problem import Problem
from salf.simulation import seeded
from salf.theory import Constants

USERS = 8  # whose gradients are looked at, evenly spaced
BATCHES = 4  # of each of them
STEPS = 10  # of the power iteration for rho_s
KAPPA = 10.0  # rho_s / rho_c, which gradients at one point do not tell


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates from gradients of some users at w_1."""

    rho_s: float
    squares: Floats  # |grad F_u|^2 of each of the users
    variances: Floats  # sigma_u^2 of a single row
    loss: float  # F(w_1)

    @property
    def distance2(self) -> float:
        """D = |w_1 - w_opt|^2: by strong convexity at most 2 F(w_1)/rho_c, if losses are >= 0."""
        return 2 * max(self.loss, 0.0) * KAPPA / self.rho_s

    def constants(self, rows: Ints) -> Constants:
        """The constants for users with batches of so many rows."""
        per_batch = float((1 / rows).mean())
        sigma2 = float(self.variances.mean()) * per_batch
        G2 = float((self.squares + self.variances * per_batch).max())
        return Constants(self.rho_s / KAPPA, self.rho_s, [sigma2], G2)


def estimate(problem: Problem, batches: Batches) -> Estimates:
    """Estimate at the model as it is."""
    users = evenly(np.arange(len(batches.data)), USERS)
    drawn = [[_gradient(problem, batches, user, t) for user in users] for t in range(BATCHES)]
    squares, variances = [], []
    for rows, pairs in zip(batches.sizes(users), zip(*drawn, strict=True), strict=True):
        own = torch.stack([gradient for gradient, _ in pairs])
        variance = float(own.var(dim=0, correction=1).sum())  # of a batch
        mean2 = float(own.mean(dim=0).square().sum())
        squares.append(max(mean2 - variance / BATCHES, 0.0))  # without the bias of few batches
        variances.append(variance * rows)
    loss = float(np.mean([loss for pairs in drawn for _, loss in pairs]))
    rho_s = _smoothness(problem, batches, users)
    return Estimates(rho_s, np.array(squares), np.array(variances), loss)


def _gradient(problem: Problem, batches: Batches, user: int, t: int) -> tuple[Tensor, float]:
    """A user's gradient on its batch of round t + 1, and the loss."""
    who, draws, model = np.array([user]), Keyed(0, t + 1), problem.model.train()
    inputs, labels = batches.of_round(draws, who)(who)
    with seeded(draws.torch_seed):
        loss = user_losses(problem.loss, model(inputs), labels, users=1).sum()
    found = torch.autograd.grad(loss, _trained(problem), materialize_grads=True, allow_unused=True)
    return torch.cat([each.reshape(-1).double() for each in found]), loss.item()


def _smoothness(problem: Problem, batches: Batches, users: Ints) -> float:
    """The largest curvature of the users' mean loss.

    Power iteration: a Hessian times a vector is a difference of gradients, for any module.
    """
    parameters = _trained(problem)
    start = parameters_to_vector(parameters).detach().clone()

    def slope() -> Tensor:
        return torch.stack([_gradient(problem, batches, user, 0)[0] for user in users]).mean(dim=0)

    first = direction = slope()
    length, curvature = 1e-3 * (float(start.double().norm()) or 1.0), 0.0
    for _ in range(STEPS):
        if not (size := float(direction.norm())) > 0:
            break
        vector_to_parameters(start + (length * direction / size).to(start.dtype), parameters)
        direction = (slope() - first) / length
        curvature = max(curvature, float(direction.norm()))
    vector_to_parameters(start, parameters)
    if not 0 < curvature < inf:
        raise SalfError("rho_s cannot be estimated: gradients do not change with the model.")
    return curvature


def _trained(problem: Problem) -> list[Tensor]:
    return [each for each in problem.model.parameters() if each.requires_grad]
