"""What is known of a federation before it trains: its fleet's law, and the theorem's constants.

The theorem bounds its constants over all models, for convex losses. What a few gradients tell is
how large they are at w_1, which is all there is before training: estimates, not bounds.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from salf.core.arrivals import Floats, Ints, evenly
from salf.core.draws import Keyed
from salf.data.sampling import Batches
from salf.engines.losses import user_losses
from salf.problem import Problem
from salf.simulation import seeded
from salf.theory import Constants
from salf.worlds.fleet.timing import Round, Timing

MOST_USERS = 500  # of a larger cohort, so many are looked at, evenly spaced in speed
DRAWN = 32  # rounds that are drawn to know how long they take
STARTS = 8  # times of the budget at which devices that come and go are looked at
USERS = 8  # whose gradients are looked at, evenly spaced
BATCHES = 4  # of each of them
KAPPA = 10.0  # rho_s / rho_c, which gradients at one point do not tell


class FleetLaw:
    """How many users reach each layer by a deadline, and how long rounds take, on a fleet."""

    def __init__(self, timing: Timing, cohort: int, budget: float) -> None:
        self.timing, self.budget = timing, budget
        order = np.argsort(timing.expected(np.arange(timing.users)), kind="stable")
        # A cohort is like as many users evenly spaced in speed.
        count = min(cohort, MOST_USERS)
        places = ((np.arange(count) + 0.5) * timing.users / count).astype(np.int64)
        self.users: Ints = np.sort(order[places])
        always = timing.devices.availability.always
        self._starts = [0.0] if always else np.linspace(0, budget, STARTS, endpoint=False).tolist()

    def unreached(self, deadline: float) -> Floats:
        """p_l, the chance that no user reaches layer l: [L]."""
        reach = np.array([self.timing.reach(self.users, at, deadline) for at in self._starts])
        return np.asarray((1 - reach).prod(axis=2).mean(axis=0))

    def deadline_for(self, share: float) -> float:
        """The deadline by which this share of the users is done, at most the budget."""
        ends = np.concatenate([times.finish for times in self._rounds])
        return float(f"{np.quantile(np.minimum(ends, self.budget), share):.3g}")

    def seconds(self, deadline: float | None) -> float:
        """How long a round takes; without a deadline, until all users are done."""
        ends = [
            times.finish.max() if deadline is None else times.closes(deadline)
            for times in self._rounds
        ]
        return float(np.mean(ends))

    @cached_property
    def _rounds(self) -> list[Round]:
        starts = self._starts * -(-DRAWN // len(self._starts))
        return [self.timing.round(Keyed(0, t), self.users, at) for t, at in enumerate(starts, 1)]

    def quantile(self, part: float) -> float:
        """The seconds in which this part of the users is done, without jitter or absence."""
        return float(np.quantile(self.timing.expected(self.users), part))

    def available(self) -> float:
        """The share of the time that users are available."""
        own = self.timing.devices.availability.active(self.users, 0.0, self.budget)
        return float(np.mean(own) / self.budget)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates from gradients of some users at w_1, and the rate at which training begins."""

    rate: float
    squares: Floats  # |grad F_u|^2 of each of the users
    variances: Floats  # sigma_u^2 of a single row
    loss: float  # F(w_1)

    @property
    def rho_s(self) -> float:
        """The smoothness with which the theorem's first learning rate is nearly that of the run."""
        return 1 / (4 * self.rate)

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


def estimate(problem: Problem, batches: Batches, rate: float) -> Estimates:
    """Estimate at the model as it is."""
    squares, variances, losses = [], [], []
    for user in evenly(np.arange(len(batches.data)), USERS):
        found = [_gradient(problem, batches, user, t) for t in range(1, BATCHES + 1)]
        own = torch.stack([gradient for gradient, _ in found])
        variance = float(own.var(dim=0, correction=1).sum())  # of a batch
        mean2 = float(own.mean(dim=0).square().sum())
        squares.append(max(mean2 - variance / BATCHES, 0.0))  # without the bias of few batches
        variances.append(variance * int(batches.sizes(np.array([user]))[0]))
        losses += [loss for _, loss in found]
    return Estimates(rate, np.array(squares), np.array(variances), float(np.mean(losses)))


def _gradient(problem: Problem, batches: Batches, user: int, t: int) -> tuple[Tensor, float]:
    """A user's gradient on its batch of round t, and the loss."""
    who, draws, model = np.array([user]), Keyed(0, t), problem.model.train()
    inputs, labels = batches.of_round(draws, who)(who)
    with seeded(draws.torch_seed, inputs.device):
        loss = user_losses(problem.loss, model(inputs), labels, users=1).sum()
    trained = [each for each in model.parameters() if each.requires_grad]
    found = torch.autograd.grad(loss, trained, materialize_grads=True, allow_unused=True)
    return torch.cat([each.reshape(-1).cpu().double() for each in found]), loss.item()
