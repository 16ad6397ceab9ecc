"""Measurements for the lemmas: many rounds of depths, and real gradients of one round.

A step is linear in the gradients, -eta sum_u c[l, u] g_u^l, and everything the lemmas say about
it depends on them through the inner products <g_u^l, g_v^l> alone. So gradients are computed once
and depths, which are all that is random in the lemmas, are drawn many times.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from reproduction.item import Json, Measurement
from salf.core.arrivals import Arrivals, Floats
from salf.core.draws import Unkeyed
from salf.core.layers import Layers, backward_to
from salf.data import DataSet, Samples, load, split
from salf.data.sampling import places
from salf.engines import cross_entropy
from salf.methods import Method
from salf.runs.config import Config
from salf.worlds.depth import DepthDistribution

_AT_ONCE = 1000


def rounds_of(
    law: DepthDistribution, draws: int, rng: np.random.Generator
) -> Iterator[list[Arrivals]]:
    """Rounds of depths, some at a time."""
    for start in range(0, draws, _AT_ONCE):
        yield [law.draw(Unkeyed(rng), law.everybody) for _ in range(min(_AT_ONCE, draws - start))]


def weights_of(rule: Method, rounds: Sequence[Arrivals], unreached: Floats) -> Floats:
    """c[l, u] of every round: [rounds, L, U]."""
    return np.stack([rule.weights(arrived, unreached) for arrived in rounds])


def inner_products(
    model: nn.Module, samples: Samples, users: int, batch_size: int, rng: np.random.Generator
) -> Floats:
    """<g_u^l, g_v^l> as [L, U, U], of one mini-batch of every user, in double precision."""
    model = model.double()
    layers, tensors = Layers.of(model), dict(model.named_parameters())
    shares = split("iid", samples.labels, users, rng)
    everybody = np.arange(users)
    drawn = places(Unkeyed(rng), everybody, shares.sizes(everybody), batch_size)
    gradients = []
    for batch in shares.at(everybody, drawn):
        inputs, labels = samples.rows(torch.from_numpy(batch))
        loss = cross_entropy(model(inputs.double()), labels).mean()
        found = backward_to(1, loss, tensors, layers)
        gradients.append(
            [torch.cat([found[name].flatten() for name in layer.parameters]) for layer in layers]
        )
    by_layer = [torch.stack(of_users) for of_users in zip(*gradients, strict=True)]
    return np.stack([(of_users @ of_users.T).numpy() for of_users in by_layer])


def on_images(
    name: str, function: Callable[..., Json], config: Config, work: float, **arguments: Any
) -> Measurement:
    """A measurement on the images of a config, in batches of its size."""
    source = {"data": config.data, "data_dir": config.data_dir, "batch_size": config.batch_size}
    return Measurement(name, function, source | arguments, work)


def images(data: str, data_dir: str) -> DataSet:
    """The data set, as the arguments of a measurement name it."""
    return load(data, Path(data_dir) if data_dir else None)


def errors_allowed(confidence: float, count: int) -> float:
    """How many standard errors `count` means may be off, all at once (Bonferroni)."""
    return float(stats.norm.isf((1 - confidence) / (2 * count)))
