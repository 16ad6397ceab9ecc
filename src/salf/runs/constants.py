"""Estimates of the theorem's constants, from a few gradients of the model as it is initialised.

The theorem bounds them over all models, for convex losses. What a few gradients tell is how large
they are at w_1, which is all there is before training: estimates, not bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

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
    """Estimates from gradients of some users at w_1; `given` are constants that are known."""

    rho_s: float
    squares: Floats  # |grad F_u|^2 of each of the users
    variances: Floats  # sigma_u^2 of a single row
    loss: float  # F(w_1)
    given: Mapping[str, float]

    @property
    def rho(self) -> tuple[float, float]:
        """rho_c and rho_s; with only one of them known, KAPPA gives the other."""
        rho_c, rho_s = self.given.get("rho_c"), self.given.get("rho_s")
        if rho_s is None:
            rho_s = self.rho_s if rho_c is None else max(self.rho_s, rho_c)
        return rho_s / KAPPA if rho_c is None else rho_c, rho_s

    @property
    def distance2(self) -> float:
        """D = |w_1 - w_opt|^2: by strong convexity at most 2 F(w_1)/rho_c, if losses are >= 0."""
        return self.given.get("distance2", 2 * max(self.loss, 0.0) / self.rho[0])

    def constants(self, rows: Ints, scale: float = 1.0) -> Constants:
        """The constants for users with batches of so many rows, `scale` times the full ones.

        Known values of sigma^2 and G^2 are of the full batches; sigma^2 grows as 1/scale.
        """
        per_batch = float((1 / rows).mean())
        sigma2 = float(self.variances.mean()) * per_batch
        if "sigma2" in self.given:
            sigma2 = self.given["sigma2"] / scale
        G2 = float((self.squares + self.variances * per_batch).max())
        return Constants(*self.rho, [sigma2], self.given.get("g2", G2), self.given.get("gap", 0.0))


def estimate(problem: Problem, batches: Batches, given: Mapping[str, float]) -> Estimates:
    """Estimate at the model as it is."""
    users = evenly(np.arange(len(batches.data)), USERS)
    gradients = _Gradients(problem, batches)
    drawn = [[gradients.of(user, t) for user in users] for t in range(1, BATCHES + 1)]
    squares, variances = [], []
    for rows, pairs in zip(batches.sizes(users), zip(*drawn, strict=True), strict=True):
        own = torch.stack([gradient for gradient, _ in pairs])
        variance = float(own.var(dim=0, correction=1).sum())  # of a batch
        mean2 = float(own.mean(dim=0).square().sum())
        squares.append(max(mean2 - variance / BATCHES, 0.0))  # without the bias of few batches
        variances.append(variance * rows)
    first = torch.stack([gradient for gradient, _ in drawn[0]]).mean(dim=0)
    rho_s = given.get("rho_s") or gradients.smoothness(users, first)
    loss = float(np.mean([loss for pairs in drawn for _, loss in pairs]))
    return Estimates(rho_s, np.array(squares), np.array(variances), loss, dict(given))


class _Gradients:
    def __init__(self, problem: Problem, batches: Batches) -> None:
        self.problem, self.batches = problem, batches
        self.parameters = [each for each in problem.model.parameters() if each.requires_grad]

    def of(self, user: np.int64, t: int = 1) -> tuple[Tensor, float]:
        """A user's gradient on its batch of round t, and the loss."""
        who, draws, model = np.array([user]), Keyed(0, t), self.problem.model.train()
        inputs, labels = self.batches.of_round(draws, who)(who)
        with seeded(draws.torch_seed):
            loss = user_losses(self.problem.loss, model(inputs), labels, users=1).sum()
        found = torch.autograd.grad(
            loss, self.parameters, materialize_grads=True, allow_unused=True
        )
        return torch.cat([each.reshape(-1).double() for each in found]), loss.item()

    def smoothness(self, users: Ints, first: Tensor) -> float:
        """The largest curvature of the users' mean loss, whose gradient is `first`.

        Power iteration: a Hessian times a vector is a difference of gradients, for any module.
        """
        start = [each.detach().clone() for each in self.parameters]
        norm = float(sum(each.double().square().sum() for each in start)) ** 0.5
        length, curvature, direction = 1e-3 * (norm or 1.0), 0.0, first
        for _ in range(STEPS):
            size = float(direction.norm())
            if not size > 0:
                break
            self._move(start, length * (direction / size))
            there = torch.stack([self.of(user)[0] for user in users]).mean(dim=0)
            direction = (there - first) / length
            curvature = max(curvature, float(direction.norm()))
        self._move(start, torch.zeros_like(first))
        if not 0 < curvature < inf:
            raise SalfError(
                "rho_s cannot be estimated, because the gradients at initialisation do not change: "
                "set it, such as rho_s=1."
            )
        return curvature

    def _move(self, start: list[Tensor], by: Tensor) -> None:
        parts = torch.split(by, [each.numel() for each in start])
        with torch.no_grad():
            for each, origin, part in zip(self.parameters, start, parts, strict=True):
                each.copy_(origin + part.reshape(origin.shape).to(origin.dtype))
