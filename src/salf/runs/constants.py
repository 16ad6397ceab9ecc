"""Estimates of the theorem's constants, from a few gradients of the model as it is initialised.

The theorem bounds them over all models, for convex losses. What a few gradients tell is how large
they are at w_1, which is all there is before training: estimates, not bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints, evenly
from salf.core.draws import Keyed
from salf.engines.losses import user_losses
from salf.runs.training import Training
from salf.simulation import seeded
from salf.theory import Constants

USERS = 8  # whose gradients are looked at, evenly spaced
BATCHES = 4  # of each of them
STEPS = 10  # of the power iteration for rho_s
KAPPA = 10.0  # rho_s / rho_c, which gradients at one point do not tell
GIVEN = ("rho_c", "rho_s", "sigma2", "g2", "gap", "distance2")


@dataclass(frozen=True, eq=False)
class Estimates:
    """What the gradients of some users at w_1 say; `given` are constants that are known."""

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
        """The constants for users with batches of so many rows.

        Known values of sigma^2 and G^2 are of the full batches: with batches of `scale` times the
        size, sigma^2 is 1/scale times as large.
        """
        rho_c, rho_s = self.rho
        per_batch = float((1 / rows).mean())
        sigma2 = float(self.variances.mean()) * per_batch
        G2 = float((self.squares + self.variances * per_batch).max())
        if "sigma2" in self.given:
            sigma2 = self.given["sigma2"] / scale
        gap = self.given.get("gap", 0.0)
        return Constants(rho_c, rho_s, [sigma2], self.given.get("g2", G2), gap)


def estimate(training: Training, given: Mapping[str, float]) -> Estimates:
    """Estimate at the model as it is. It is not kept: parameters are moved to find rho_s."""
    for name, value in given.items():
        if not 0 <= value < inf:
            raise SalfError(f"{name} must be finite and not negative, not {value}.")
    simulation = training.simulation
    users = evenly(np.arange(len(simulation.data)), USERS)
    rows = np.array([simulation.batches.sizes(users[i : i + 1])[0] for i in range(len(users))])
    gradients = np.empty((len(users), BATCHES), object)
    losses = []
    for t in range(1, BATCHES + 1):
        for i, user in enumerate(users):
            gradients[i, t - 1], loss = _gradient(training, t, user)
            losses.append(loss)
    squares, variances = [], []
    for i in range(len(users)):
        own = torch.stack(list(gradients[i]))
        variance = float(own.var(dim=0, correction=1).sum())  # of a batch
        mean2 = float(own.mean(dim=0).square().sum())
        squares.append(max(mean2 - variance / BATCHES, 0.0))  # without the bias of few batches
        variances.append(variance * rows[i])
    first = torch.stack([gradients[i, 0] for i in range(len(users))]).mean(dim=0)
    rho_s = given.get("rho_s") or _smoothness(training, users, first)
    return Estimates(
        rho_s, np.array(squares), np.array(variances), float(np.mean(losses)), dict(given)
    )


def _gradient(training: Training, t: int, user: np.int64) -> tuple[torch.Tensor, float]:
    """A user's stochastic gradient on its batch of round t, and the loss."""
    simulation = training.simulation
    who, draws = np.array([user]), Keyed(simulation.seed, t)
    inputs, labels = simulation.batches.of_round(draws, who)(who)
    model = simulation.model.train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    with seeded(draws.torch_seed):
        loss = user_losses(simulation.engine.loss, model(inputs), labels, users=1).sum()
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [
        (torch.zeros_like(each) if grad is None else grad).reshape(-1).double()
        for each, grad in zip(parameters, found, strict=True)
    ]
    return torch.cat(flat), loss.item()


def _smoothness(training: Training, users: Ints, first: torch.Tensor) -> float:
    """The largest curvature of the users' mean loss: power iteration on differences of gradients.

    A Hessian times a vector is the difference of gradients at two close points, for any module.
    """
    parameters = [each for each in training.simulation.model.parameters() if each.requires_grad]
    start = [each.detach().clone() for each in parameters]
    norm = float(sum(each.double().square().sum() for each in start)) ** 0.5
    length, curvature = 1e-3 * (norm or 1.0), 0.0
    direction = first
    for _ in range(STEPS):
        size = float(direction.norm())
        if not size > 0:
            break
        direction = direction / size
        _move(parameters, start, length * direction)
        there = torch.stack([_gradient(training, 1, user)[0] for user in users]).mean(dim=0)
        direction = (there - first) / length
        curvature = max(curvature, float(direction.norm()))
    _move(parameters, start, torch.zeros_like(first))
    if not 0 < curvature < inf:
        raise SalfError(
            "rho_s cannot be estimated, because the gradients at initialisation do not change: "
            "set it, such as rho_s=1."
        )
    return curvature


def _move(
    parameters: list[torch.nn.Parameter], start: list[torch.Tensor], by: torch.Tensor
) -> None:
    parts = torch.split(by, [each.numel() for each in start])
    with torch.no_grad():
        for each, origin, part in zip(parameters, start, parts, strict=True):
            each.copy_(origin + part.reshape(origin.shape).to(origin.dtype))
