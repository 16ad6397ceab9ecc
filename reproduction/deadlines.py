"""From a deadline to depths: as the paper maps them, and by a simulated clock."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Draws, Purpose
from salf.core.layers import Layers
from salf.models import build
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.jitter import Paced

FULL_PASS = 7.5  # microseconds of a full pass of the CNN, as the paper measured it
BATCH = 16  # samples of that pass
FLEET = "reproduction.deadlines:fleet"


def straggler_share(deadline: float) -> float:
    """The paper's linear map from a deadline to the ratio of stragglers."""
    return round(max(0.0, 1 - deadline / FULL_PASS), 4)


class Passes(NamedTuple):
    """The layers of the CNN: what they are, and the part of a pass that is over with each."""

    kinds: Sequence[str]
    shares: Sequence[float]  # S_l, S_1 = 1

    def reach(self, deadline: float) -> list[float]:
        """P(S_l tau <= T_max), if a pass takes a time tau that is uniform up to `FULL_PASS`."""
        return [min(1.0, deadline / (FULL_PASS * share)) for share in self.shares]


@cache
def _cnn() -> tuple[Cost, Sequence[str]]:
    network, example = build("cnn", (1, 28, 28), 10, seed=0), torch.zeros(2, 1, 28, 28)
    layers = Layers.of(network)
    kinds = [type(network.get_submodule(layer.name)).__name__ for layer in layers]
    return Cost.of(network, layers, example), kinds


def passes() -> Passes:
    """The multiply-adds from the start of the forward pass until each layer is done."""
    cost, kinds = _cnn()
    done = cost.forward.sum() + np.cumsum(cost.backward[::-1])[::-1]
    return Passes(kinds, (done / done[0]).tolist())


class UniformPace(Paced):
    """The time of a round is uniform up to the nominal one."""

    def factor(self, draws: Draws, users: Ints) -> Floats:
        return np.asarray(1 - draws.uniform(users, Purpose.JITTER)[:, 0])

    def below(self, factor: Floats, users: Ints) -> Floats:
        return np.minimum(factor, 1)


def fleet(users: int) -> Fleet:
    """Users whose pass takes a time that is uniform up to 7.5 microseconds, anew in each round.

    So a share 1 - T_max/7.5 of them is late, on average, as the paper has it, and the late ones
    have completed the layers that fit, by their multiply-adds.
    """
    cost, _ = _cnn()
    work = BATCH * float(cost.forward.sum() + cost.backward.sum())
    return Fleet.of(np.full(users, work / (FULL_PASS * 1e-6)).tolist(), jitter=UniformPace())
