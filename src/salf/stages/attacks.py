"""Users that attack: what they send in place of their gradients, in the simulator.

An attacker knows its own honest gradient, and so about how large everybody's are. It sends all
layers in every round, since nothing keeps it from making them up. Buffers it sends as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import Change, PerLayer, UserId
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed, Purpose
from salf.core.layers import Layers
from salf.core.rules import Tensors

# How many times the norm of an honest gradient is sent, unless said otherwise. The largest that the
# live server's learned bound lets through is 50 times the usual one.
STRENGTH: Mapping[str, float] = {"flip": 45.0, "random": 45.0, "constant": 45.0, "large-first": 100}


@dataclass(frozen=True)
class Attack:
    """An attack: attackers send `strength` times their gradient's norm in every layer.

    flip: the gradient backwards. random: a new direction in every round. constant: the same number
    in all entries. large-first: the gradient itself, too large in round 1 and honest after that.
    """

    kind: str
    strength: float
    seed: int = 0

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> "Attack | None":
        """`flip`, or `flip:2` for another strength; None for `none` or nothing."""
        if text in ("", "none"):
            return None
        kind, colon, strength = text.partition(":")
        if kind not in STRENGTH:
            raise unknown("attack", kind, STRENGTH)
        try:
            found = float(strength) if colon else STRENGTH[kind]
        except ValueError:
            found = -1.0
        if not 0 < found < 1e6:
            raise SalfError(f"an attack's strength is a positive number, as in flip:2, not {text}.")
        return cls(kind, found, seed)

    def sent(self, update: Tensors, layers: Layers, t: int, number: int) -> dict[str, Tensor]:
        """The tensors that user `number` (from 0) sends in round t in place of this update."""
        sent = dict(update)
        if self.kind == "large-first" and t > 1:
            return sent
        drawn = Keyed(self.seed, t).uniform(np.array([number]), Purpose.ATTACK)[0, 0]
        generator = torch.Generator().manual_seed(int(drawn * 2**53))
        for layer in layers:
            own = {name: update[name] for name in layer.parameters if name in update}
            made, factor = own, -self.strength if self.kind == "flip" else self.strength
            if self.kind == "constant":
                made = {name: torch.ones_like(g) for name, g in own.items()}
            elif self.kind == "random":
                made = {n: torch.randn(g.shape, generator=generator).to(g) for n, g in own.items()}
            if made is not own:
                factor = self.strength * _norm(own) / (_norm(made) or 1.0)
            sent |= {name: factor * direction for name, direction in made.items()}
        return sent


@dataclass(frozen=True)
class Attackers:
    """The last `count` of the users attack, also in layers that they did not reach."""

    attack: Attack
    users: int
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.users:
            raise SalfError(f"attackers must be from 1 to {self.users} (users), not {self.count}.")

    def sent(self, layers: Layers, t: int) -> Change:
        """What is sent in round t in place of updates of attackers."""

        def change(update: Tensors, _: PerLayer | None, user: UserId) -> Tensors:
            bad = int(user) >= self.users - self.count
            return self.attack.sent(update, layers, t, int(user)) if bad else update

        return change

    def arrived(self, arrived: Arrivals) -> Arrivals:
        """The arrivals with all layers of the attackers that were asked."""
        bad = arrived.user >= self.users - self.count
        return replace(
            arrived,
            depth=np.where(bad, 1, arrived.depth),
            steps=np.where(bad, arrived.planned, arrived.steps),
            straggler=arrived.straggler & ~bad,
        )


def _norm(values: Mapping[str, Tensor]) -> float:
    return float(sum(float(value.norm()) ** 2 for value in values.values()) ** 0.5)
