"""Bases of methods: those that count whole updates, remember users, or step after K updates."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Arrivals, Floats, Ints
from salf.methods.base import Method, Recalled, limited
from salf.worlds.base import World


@dataclass(frozen=True)
class PerLayerOrWhole(Method):
    """A method that treats every layer separately, with the users that reached it.

    With `whole`, only users that finished take part, as in the papers, which use whole updates.
    """

    whole: bool = False

    def gradients(self, arrived: Arrivals, layers: int) -> Ints:
        """Gradients of all who reached the layer, or only of those who finished."""
        every = arrived.gradients(layers)
        return np.where(arrived.finished, every, 0) if self.whole else every

    def inverse(self, arrived: Arrivals, layers: int, floor: float) -> Floats:
        """1/max(pi, floor) for those who take part, pi being P(user u takes part in layer l)."""
        # A user that reached layer 1 has finished.
        chance = arrived.chance[:1] if self.whole else arrived.chance
        return (self.gradients(arrived, layers) > 0) / np.maximum(chance, floor)


@dataclass(frozen=True)
class Remembers(Method):
    """A method that remembers the last update of every user.

    With a share a[l, u], a scale s[l] and the remembered gradient y[l, u], its step is

        s_l sum_{u arrived} a[l, u] (g[l, u] - beta y[l, u])  +  beta mean_u y[l, u]

    A remembered update has the weight fade / (fade + age), one half after `fade` rounds. With
    `fade` None it does not fade, as in the papers; with 0 nothing is remembered. At most `remember`
    users are remembered, each taking as much memory as the model.
    """

    fade: float | None = limited(20.0, least=0)
    remember: int = limited(1000, least=1)

    def memory(self) -> Recalled:
        """The last update of every user, with beta = 1."""
        return Recalled(1.0, self.fade, self.remember)


@dataclass(frozen=True)
class WithMemory(Remembers, PerLayerOrWhole):
    """A method with a memory of every layer separately."""


@dataclass(frozen=True)
class Buffering(Method):
    """The server takes a step after `buffer` updates, each on the model its user was given.

    The clock determines the order in which updates arrive.
    """

    buffer: int = limited(10, least=1)

    def world(self, world: World) -> World:
        """Users deliver when they are done."""
        return world.buffered(self.buffer)


def polynomial(age: Ints, power: float) -> Floats:
    """(1 + staleness)^-power."""
    return np.asarray((1.0 + age) ** -power)


def of_whole_updates(arrived: Arrivals, layers: int, weight: Floats | float) -> Floats:
    """These shares for the users that finished, in every layer: [L, users]."""
    return np.tile(np.where(arrived.finished, weight, 0.0), (layers, 1))
