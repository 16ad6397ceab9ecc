"""A strongly convex problem on real images whose constants can be computed, not guessed.

Ridge regression: F_u(w) is the mean of (x^T w - y)^2 / 2 over user u's samples, plus
ridge/2 |w|^2. x are the image's leading principal components, whitened so that the condition
number stays small; y tells even labels from odd ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed
from salf.core.server import theorem_rate
from salf.data import Partition, Samples, split
from salf.data.sampling import places
from salf.methods import Method
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Uniform


# eq=False: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Ridge:
    """Users with their samples, and what the theorem assumes of them (AS1 to AS3)."""

    inputs: Floats  # [samples, m]
    targets: Floats
    shares: Partition  # the samples of every user
    ridge: float
    batch_size: int

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        """E x z^T and E |x|^2 z z^T of every user, z = (x, y): a residual is z^T (w, -1)."""
        first, second = [], []
        for share in self.shares:
            x = self.inputs[share]
            z = np.column_stack([x, self.targets[share]])
            first.append(x.T @ z / len(share))
            second.append((z * (x**2).sum(1, keepdims=True)).T @ z / len(share))
        return np.stack(first), np.stack(second)

    @cached_property
    def hessians(self) -> Floats:
        """The Hessian of every F_u, which is quadratic."""
        features = self.inputs.shape[1]
        return self._moments[0][:, :, :features] + self.ridge * np.eye(features)

    @cached_property
    def rho(self) -> tuple[float, float]:
        """rho_c and rho_s (AS1): the extreme eigenvalues over all users."""
        eigenvalues = np.linalg.eigvalsh(self.hessians)
        return float(eigenvalues.min()), float(eigenvalues.max())

    @cached_property
    def optimum(self) -> Floats:
        """w_opt [w_opt]."""
        return np.linalg.solve(self.hessians.mean(0), self._moments[0][:, :, -1].mean(0))

    @cached_property
    def heterogeneity(self) -> float:
        """Gamma [psi_heterogeneity_gap]: what the users' own optima would save on average."""
        own = np.linalg.solve(self.hessians, self._moments[0][:, :, -1:])[:, :, 0]
        away = self.optimum - own
        return float(np.einsum("um,umk,uk->u", away, self.hessians, away).mean() / 2)

    def gap(self, models: Floats) -> Floats:
        """F(w) - F(w_opt) of every model [..., m]."""
        away = models - self.optimum
        return np.asarray(((away @ self.hessians.mean(0)) * away).sum(-1) / 2)

    def gradient_moments(self, models: Floats) -> tuple[Floats, Floats]:
        """Variance (AS2) and mean square (AS3) of a batch's gradient: [users, models] each.

        Exact: the expectation over all batches drawn without replacement.
        """
        first, second = self._moments
        residual = np.column_stack([models, np.full(len(models), -1.0)])
        of_loss = residual @ first.transpose(0, 2, 1)  # [users, models, m]
        square = ((residual @ second) * residual).sum(-1)
        sizes = np.array([len(share) for share in self.shares])
        of_mean = (sizes - self.batch_size) / (self.batch_size * (sizes - 1))
        variance = of_mean[:, None] * (square - (of_loss**2).sum(-1))
        gradient = of_loss + self.ridge * models
        return variance, variance + (gradient**2).sum(-1)

    def batch_gradients(self, models: Floats, index: Ints) -> Floats:
        """The gradient of every user's batch [repeats, users, batch] at every repeat's model."""
        x = self.inputs[index]
        residual = np.einsum("rubm,rm->rub", x, models) - self.targets[index]
        of_loss = np.einsum("rub,rubm->rum", residual, x) / self.batch_size
        return np.asarray(of_loss + self.ridge * models[:, None])


def from_images(
    samples: Samples,
    *,
    users: int,
    features: int,
    spec: str,
    ridge: float,
    batch_size: int,
    rng: np.random.Generator,
) -> Ridge:
    """Pool images to 7x7, whiten their leading components, and split them among users."""
    images, labels = samples.rows()
    pooled = adaptive_avg_pool2d(images, 7).flatten(1).to(torch.float64).numpy()
    centred = pooled - pooled.mean(0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    leading = directions[:, -features:] / np.sqrt(variances[-features:])
    parity = np.where(labels.numpy() % 2 == 0, 1.0, -1.0)
    return Ridge(
        inputs=centred @ leading,
        targets=parity - parity.mean(),
        shares=split(spec, labels, users, rng),
        ridge=ridge,
        batch_size=batch_size,
    )


def trajectories(
    ridge: Ridge, rule: Method, layers: int, seeds: Sequence[int], rounds: int
) -> Iterator[Floats]:
    """w_1, w_2, ... of some repeats at once, [repeats, m], from w_1 = 0.

    Each is what `Simulation` does with that seed: the same batches, depths and steps.
    """
    features = ridge.inputs.shape[1]
    layer_of = np.arange(features) * layers // features
    parts, users = ridge.shares, np.arange(len(ridge.shares))
    sizes = parts.sizes(users)
    world = rule.world(AtDeadline(Uniform(len(users), layers)))
    memories = [world.start() for _ in seeds]
    rate = theorem_rate(*ridge.rho)
    models = np.zeros((len(seeds), features))
    for t in range(1, rounds + 1):
        yield models
        index, weights = [], []
        for repeat, seed in enumerate(seeds):
            draws = Keyed(seed, t)
            index.append(parts.at(users, places(draws, users, sizes, ridge.batch_size)))
            before = memories[repeat]
            arrived, memories[repeat] = world.arrivals(t, draws, users, before)
            weights.append(rule.weights(arrived, world.unreached(t, users, before)))
        gradients = ridge.batch_gradients(models, np.stack(index))
        c = np.stack(weights)[:, layer_of]  # [repeats, m, users]
        models = models - rate(t) * np.einsum("rmu,rum->rm", c, gradients)
