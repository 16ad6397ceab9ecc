"""Users that attack, in the simulator: what they compute on, and what they send.

Attackers know all honest updates of a round before they send theirs, and the defence: where the
server compares users' momenta, they send what makes their own momentum the one they want. They send
all layers in every round, since nothing keeps them from making them up; buffers as they are.

With honest vectors g_u of a layer, their mean m, and their standard deviation s by coordinate:

- alie: m - z s (Baruch et al. 2019); alie-own: the same with the mean and the deviation of the
  attacker's own updates over time, if it knows no others
- ipm: -e m (Xie et al. 2020)
- min-max: m - c s, with the largest c for which no honest vector is further from it than the
  honest vectors are from each other; min-sum: for which the sum of its squared distances is not
  larger than that of any honest vector (Shejwalkar and Houmansadr 2021)
- mimic: what the first honest user sends (Karimireddy et al. 2022)
- label-flip, backdoor: honest gradients on changed data (`Poison`)
- flip, random, constant: with so many times the norm of the own gradient; large-first: the own
  gradient, too large in round 1 and honest after that
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import Changing, Held, LayerwiseAggregate, PerLayer, Step, UserId
from salf.core.arrivals import Arrivals, Ints
from salf.core.draws import Keyed, Purpose
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.data import Samples
from salf.stages.recall import Recall
from salf.stages.table import UserTable

# By attack: its number unless said otherwise. The largest norm that the live server's learned bound
# lets through is 50 times the usual one.
STRENGTH: Mapping[str, float] = {
    **dict.fromkeys(("flip", "random", "constant"), 45.0),
    "large-first": 100.0,
    **dict.fromkeys(("alie", "alie-own"), 1.5),
    **dict.fromkeys(("ipm", "min-max", "min-sum", "mimic", "label-flip", "backdoor"), 1.0),
}
KNOWING = ("alie", "ipm", "min-max", "min-sum", "mimic")  # the others' updates
PLACES = ("all", "first", "last", "rare")
MEMORY = 0.9  # of what an attacker knows of its own updates
PATCH = 3  # pixels of the trigger, in both directions


@dataclass(frozen=True)
class Attack:
    """An attack, its strength, and where: in all layers, or in some and honest in the others.

    first: the first half of the layers; last: the other half; rare: layers that fewer than half of
    the honest users sent in the round.
    """

    kind: str
    strength: float
    where: str = "all"
    seed: int = 0

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> "Attack | None":
        """`flip`, `flip:2` for another strength, `flip@last`; None for `none` or nothing."""
        if text in ("", "none"):
            return None
        what, _, where = text.partition("@")
        kind, colon, strength = what.partition(":")
        if kind not in STRENGTH:
            raise unknown("attack", kind, STRENGTH)
        if (where or "all") not in PLACES:
            raise unknown("place of an attack", where, PLACES)
        try:
            found = float(strength) if colon else STRENGTH[kind]
        except ValueError:
            found = -1.0
        if not 0 < found < 1e6:
            raise SalfError(f"an attack's strength is a positive number, as in flip:2, not {text}.")
        return cls(kind, found, where or "all", seed)

    @property
    def knows(self) -> bool:
        """Whether it takes others' updates."""
        return self.kind in KNOWING

    @property
    def poison(self) -> "Poison | None":
        """How attackers change their data; None if they do not."""
        return Poison(self.kind) if self.kind in ("label-flip", "backdoor") else None

    def sent(self, own: Tensors, t: int, number: int) -> Tensors:
        """What user `number` (from 0) sends of a layer, if that follows from its own gradient."""
        if self.kind == "large-first" and t > 1:
            return own
        made, factor = own, -self.strength if self.kind == "flip" else self.strength
        if self.kind == "constant":
            made = {name: torch.ones_like(g) for name, g in own.items()}
        elif self.kind == "random":
            drawn = Keyed(self.seed, t).uniform(np.array([number]), Purpose.ATTACK)[0, 0]
            generator = torch.Generator().manual_seed(int(drawn * 2**53))
            made = {n: torch.randn(g.shape, generator=generator).to(g) for n, g in own.items()}
        if made is not own:
            factor = self.strength * _norm(own) / (_norm(made) or 1.0)
        return {name: factor * direction for name, direction in made.items()}

    def wanted(self, honest: Tensor) -> Tensor:
        """What an attacker wants to be counted as, by the honest vectors of a layer, in rows."""
        mean, deviation = honest.mean(0), honest.std(0, correction=0)
        if self.kind == "ipm":
            return -self.strength * mean
        if self.kind == "mimic":
            return honest[0]
        z = self.strength
        if self.kind in ("min-max", "min-sum"):
            z *= _largest(honest, -deviation, together=self.kind == "min-sum")
        return mean - z * deviation


def _largest(honest: Tensor, direction: Tensor, together: bool) -> float:
    """The largest c for which mean + c direction is as near the honest vectors as `wanted` says.

    The squared distance to vector i is a_i + 2 b_i c + d c^2, which must be at most `most` for each
    i, or on average.
    """
    offset = honest.mean(0) - honest
    a, b, d = offset.square().sum(1), offset @ direction, direction.square().sum()
    squares = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").square()
    most = squares.sum(1).max() / len(honest) if together else squares.max()
    if together:
        a, b = a.mean(), b.mean()
    root = (b.square() - d * (a - most)).clamp(min=0).sqrt()
    return float(((root - b) / d).min()) if d > 0 else 0.0


@dataclass(frozen=True)
class Poison:
    """Attackers' changed data.

    label-flip: class y is called C - 1 - y, with the largest label C - 1. backdoor: half of the
    rows have a trigger, a bright patch in the last corner, and the label 0.
    """

    kind: str

    def triggered(self, inputs: Tensor) -> Tensor:
        """The inputs with the trigger."""
        found = inputs.clone()
        corner = slice(-PATCH, None)
        found[(..., corner, corner) if inputs.dim() > 2 else (..., corner)] = inputs.max()
        return found

    def rows(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """An attacker's rows as it changes them."""
        if self.kind == "label-flip":
            return inputs, classes - 1 - labels
        half = torch.arange(len(labels)) % 2 == 0
        inputs, labels = inputs.clone(), labels.clone()
        inputs[half], labels[half] = self.triggered(inputs)[half], 0
        return inputs, labels

    def tests(self, samples: Samples) -> Samples | None:
        """What the success of a backdoor is the accuracy on: other classes with the trigger."""
        if self.kind != "backdoor":
            return None
        inputs, labels = samples.rows(torch.arange(len(samples)))
        other = labels != 0
        return Samples(self.triggered(inputs)[other], torch.zeros_like(labels[other]))


class PoisonedRows:
    """The rows of a round, those of attackers changed."""

    def __init__(self, rows: Any, attackers: "Attackers", classes: int) -> None:
        self._rows, self._attackers, self._classes = rows, attackers, classes
        self.sizes = rows.sizes

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        inputs, labels = self._rows(users, step)
        poison = self._attackers.attack.poison
        assert poison is not None
        inputs, labels, size = inputs.clone(), labels.clone(), len(labels) // len(users)
        for at in np.flatnonzero(self._attackers.are(users)).tolist():
            own = slice(at * size, (at + 1) * size)
            inputs[own], labels[own] = poison.rows(inputs[own], labels[own], self._classes)
        return inputs, labels


@dataclass(frozen=True)
class Attackers:
    """The last `count` of the users attack, also in layers that they did not reach."""

    attack: Attack
    users: int
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.users:
            raise SalfError(f"attackers must be from 1 to {self.users} (users), not {self.count}.")

    def are(self, users: Any) -> Any:
        """Whether these users, or this one, attack."""
        return users >= self.users - self.count

    def arrived(self, arrived: Arrivals) -> Arrivals:
        """The arrivals with all layers of the attackers that were asked."""
        bad = self.are(arrived.user)
        return replace(
            arrived,
            depth=np.where(bad, 1, arrived.depth),
            steps=np.where(bad, arrived.planned, arrived.steps),
            straggler=arrived.straggler & ~bad,
        )


class Knowledge:
    """What attackers know of their own updates, for `alie-own`: mean and square, over time."""

    def __init__(self, layers: Layers, like: Mapping[str, Tensor]) -> None:
        names = [n for n in layers.index_of if n in like and like[n].requires_grad]
        values = {f"{what} {n}": like[n].detach() for what in ("mean", "square") for n in names}
        self._table = UserTable({"rounds": torch.zeros((), dtype=torch.int64), **values})
        self.state, self.load_state = self._table.state, self._table.load_state

    def learn(self, user: UserId, update: Tensors, z: float, window: int) -> dict[str, Tensor]:
        """The mean less z deviations, those of a momentum of `window` updates of this user."""
        row, columns = int(self._table.rows([user], add=True)[0]), self._table.columns
        columns["rounds"][row] += 1
        step, found = max(1 - MEMORY, 1 / int(columns["rounds"][row])), {}
        for name, value in update.items():
            if f"mean {name}" in columns:
                mean, square = columns[f"mean {name}"][row], columns[f"square {name}"][row]
                mean.lerp_(value, step)
                square.lerp_(value.square(), step)
                deviation = (square - mean.square()).clamp(min=0).sqrt()
                found[name] = mean - z * deviation / (2 * window - 1) ** 0.5
        return found


class Attacked(Changing):
    """Holds back what attackers would send until all honest updates of the round are known."""

    def __init__(
        self,
        inner: LayerwiseAggregate,
        attackers: Attackers,
        layers: Layers,
        t: int,
        votes: Recall | None,
        knowledge: Knowledge | None,
    ) -> None:
        super().__init__(inner, lambda update, _, user: update)
        self._attackers, self._layers, self._t = attackers, layers, t
        self._votes, self._knowledge = votes, knowledge  # momenta, if the server compares these
        self._honest: dict[UserId, Tensors] = {}
        self._waiting: list[tuple[Tensors, PerLayer | None, Held | None, UserId]] = []

    def add(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        held: Held | None = None,
        user: UserId | None = None,
    ) -> None:
        assert user is not None
        if self._attackers.are(user):
            self._waiting.append((dict(update), weights, held, user))
        else:
            self._honest[user] = dict(update)
            super().add(update, weights, held, user)

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        self._attack()
        return super().total(weights, divisor)

    def average(self) -> Step:
        self._attack()
        return super().average()

    def _attack(self) -> None:
        """Send what was held back."""
        waiting, self._waiting = self._waiting, []
        names = {name for update, *_ in waiting for name in update}
        known = {
            index: self._known(index, [n for n in layer.parameters if n in names])
            for index, layer in enumerate(self._layers)
            if names and self._attacks(index)
        }
        for update, weights, held, user in waiting:
            super().add(self._sent(update, known, user), weights, held, user)

    def _attacks(self, index: int) -> bool:
        """Whether a layer (from 0) is attacked in this round."""
        where, half = self._attackers.attack.where, len(self._layers) // 2
        if where == "rare":
            sent = sum(self._layers[index].parameters[0] in each for each in self._honest.values())
            return 2 * sent < self._attackers.users - self._attackers.count
        return where == "all" or (where == "first") == (index < half)

    def _known(self, index: int, names: Sequence[str]) -> Tensor | None:
        """The honest vectors of a layer that the server compares, in rows; None if unknown."""
        if not (self._attackers.attack.knows and names):
            return None
        if self._votes is None:
            honest = [each for each in self._honest.values() if set(names) <= each.keys()]
            rows = {name: [each[name] for each in honest] for name in names}
            flat = [torch.stack(each).flatten(1) for each in rows.values() if each]
        else:
            voters = [u for u in self._votes.voters(self._t, index) if not self._attackers.are(u)]
            at = self._votes.rows_of(voters)
            flat = [self._votes.values(name)[at].flatten(1) for name in names if voters]
        return torch.cat(flat, 1) if flat else None

    def _sent(
        self, update: Tensors, known: Mapping[int, Tensor | None], user: UserId
    ) -> dict[str, Tensor]:
        """What this user sends in place of its update."""
        attack, votes, sent, guessed = self._attackers.attack, self._votes, dict(update), {}
        if self._knowledge is not None:
            window = 1 if votes is None else votes.window
            guessed = self._knowledge.learn(user, update, attack.strength, window)
        for index, honest in known.items():
            own = {n: update[n] for n in self._layers[index].parameters if n in update}
            if attack.poison is not None:
                sent |= {name: attack.strength * value for name, value in own.items()}
                continue
            if honest is not None:
                sizes = [value.numel() for value in own.values()]
                parts = attack.wanted(honest).split_with_sizes(sizes)
                wanted = {n: part.view_as(update[n]) for n, part in zip(own, parts, strict=True)}
            elif self._knowledge is not None:
                wanted = {name: guessed[name] for name in own}
            elif not attack.knows:
                sent |= attack.sent(own, self._t, int(user))
                continue
            else:
                continue
            if votes is not None:  # the update that makes its momentum this
                wanted = {n: votes.sent_for(self._t, user, n, v) for n, v in wanted.items()}
            sent |= wanted
        return sent


def _norm(values: Mapping[str, Tensor]) -> float:
    return float(sum(float(value.norm()) ** 2 for value in values.values()) ** 0.5)
