"""Calibration: how long this machine takes for the parts of a training step of a model.

Steps are timed as those of a live user, with the weights taken over before, and in one thread.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from scipy.stats import trim_mean
from torch import Tensor, nn
from torch.nn import functional

from salf.core.arrivals import Floats
from salf.core.deadline import Backpropagation
from salf.core.layers import Layers
from salf.live.user import take_over
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import DeviceClass
from salf.worlds.fleet.files import passes

ROWS = 128  # of the largest batch that is timed
SMALLER = (64, 16, 4, 1)  # how many times the others are smaller
SECONDS, LEAST, WARM = 5.0, 5, 2  # for which steps are timed; steps of a size at least; and before


@dataclass(frozen=True, eq=False)
class Calibration:
    """The constants of a device, and the times they were fitted to.

    Times are [sizes, 1 + L], of the forward pass and of the backward pass of layers 1..L.
    """

    kind: DeviceClass
    jitter: float  # the standard deviation of the logarithm of the time of the largest batch
    sizes: tuple[int, ...]
    common: Floats  # seconds of a launch, a parameter and a multiply-add, if alike in all layers
    measured: Floats
    fitted: Floats


def calibrate(
    model: nn.Module,
    layers: Layers,
    cost: Cost,
    inputs: Tensor,
    classes: int,
    seconds: float = SECONDS,
) -> Calibration:
    """Time steps with batches of several sizes, and fit launch, parameter and multiply-add.

    The largest batch is `inputs`.
    """
    torch.set_num_threads(1)
    sizes = tuple(max(1, len(inputs) // smaller) for smaller in SMALLER)
    labels = torch.arange(len(inputs)) % classes
    times = _timed(model, layers, [(inputs[:n], labels[:n]) for n in sizes], seconds)
    measured = trim_mean(times, 0.1, axis=0)  # means, because they add up; without the extremes
    products, multiply_adds = (
        np.array([both[0].sum(), *both[1]])
        for both in (np.asarray(cost.products), cost.multiply_adds)
    )
    written = np.array([0.0, *np.asarray(cost.trained)])
    rows = np.array(sizes, np.float64)[:, None]
    terms = np.stack(np.broadcast_arrays(products, written, rows * multiply_adds), axis=-1)
    common = _fit(terms.reshape(-1, 3), measured.ravel())
    # Layers differ in how well their operations do: each has a launch and multiply-add of its own.
    beside = np.maximum(measured - common[1] * written, 0.1 * measured)
    own = np.array(
        [_fit(terms[:, stage, [0, 2]], beside[:, stage]) for stage in range(len(written))]
    )
    low, high = np.quantile(np.log(times[:, -1].sum(axis=1)), [0.16, 0.84])
    jitter = float(high - low) / 2
    usual = np.exp(-(jitter**2) / 2)  # the median of a log-normal law, compared with its mean
    constants = passes(usual * own[:, 1]), passes(usual * own[:, 0]), usual * common[1]
    kind = DeviceClass("calibrated devices", *constants)
    fitted = terms[..., 0] * own[:, 0] + terms[..., 1] * common[1] + terms[..., 2] * own[:, 1]
    return Calibration(kind, jitter, sizes, common, measured, fitted)


def _timed(
    model: nn.Module, layers: Layers, batches: Sequence[tuple[Tensor, Tensor]], seconds: float
) -> Floats:
    """The times of rounds with a step of every batch each: [rounds, batches, 1 + L]."""
    weights = {
        n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())
    }
    stopwatch = Backpropagation(model, layers)

    def step(inputs: Tensor, labels: Tensor) -> list[float]:
        def loss() -> Tensor:
            take_over(model, weights)
            return functional.cross_entropy(model(inputs), labels)

        done = stopwatch.within(None, loss)
        return [done.forward, *(done.layers[number] for number in range(1, len(layers) + 1))]

    found: list[list[list[float]]] = []
    begun = time.perf_counter()
    while len(found) < LEAST + WARM or time.perf_counter() - begun < seconds:
        found.append([step(*batch) for batch in batches])
    return np.array(found[WARM:])


def _fit(terms: Floats, seconds: Floats) -> Floats:
    """The constants of at least 0 with the least squares, of errors that grow as interruptions do.

    How often a step is interrupted grows with its time, and so does the variance.
    """
    spread = np.sqrt(seconds)
    return np.asarray(nnls(terms / spread[:, None], seconds / spread)[0])
