"""Users that attack, in the simulator: what they compute on, and what they send.

Attackers know all honest updates of a round before they send theirs, and the defence: where the
server compares users' momenta, they send what makes their own the one they want. They send all
layers in every round, and buffers as they are. docs/robust.md describes the attacks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import Changing, Held, LayerwiseAggregate, PerLayer, UserId
from salf.core.arrivals import Arrivals, Ints
from salf.core.draws import Keyed, Purpose
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.stages.recall import Recall

NORMED = ("flip", "random", "constant")  # strength: times the norm of the own gradient
KNOWING = ("alie", "ipm", "min-max", "min-sum", "mimic")  # the others' updates
POISONS = ("label-flip", "backdoor")
# By attack: its strength unless said otherwise.
STRENGTH: Mapping[str, float] = {
    **dict.fromkeys((*KNOWING, *POISONS), 1.0),
    **dict.fromkeys(("alie", "alie-own"), 1.5),
    **dict.fromkeys(NORMED, 45.0),
    "large-first": 100.0,
}
PLACES = ("all", "first", "last", "rare")
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
        for name, known, called in ((kind, STRENGTH, "attack"), (where or "all", PLACES, "place")):
            if name not in known:
                raise unknown(called, name, known)
        try:
            found = float(strength) if colon else STRENGTH[kind]
        except ValueError:
            found = -1.0
        if not 0 < found < 1e6:
            raise SalfError(f"an attack's strength is a positive number, as in flip:2, not {text}.")
        return cls(kind, found, where or "all", seed)

    def sent(self, own: Tensors, t: int, number: int) -> Tensors:
        """What user `number` (from 0) sends of a layer, if that follows from its own gradient."""
        if self.kind not in NORMED:
            scaled = self.kind != "large-first" or t == 1
            return {name: self.strength * g for name, g in own.items()} if scaled else own
        drawn = Keyed(self.seed, t).uniform(np.array([number]), Purpose.ATTACK)[0, 0]
        generator = torch.Generator().manual_seed(int(drawn * 2**53))
        made: Any = {
            "flip": lambda g: -g,
            "constant": torch.ones_like,
            "random": lambda g: torch.randn(g.shape, generator=generator).to(g),
        }[self.kind]
        found = {name: made(g) for name, g in own.items()}
        norm, made_norm = (
            torch.cat([g.flatten() for g in x.values()]).norm() for x in (own, found)
        )
        return {name: self.strength * norm / made_norm * g for name, g in found.items()}

    def wanted(self, honest: Tensor) -> Tensor:
        """What an attacker wants to be counted as, by the honest vectors of a layer, in rows."""
        mean, deviation, z = honest.mean(0), honest.std(0, correction=0), self.strength
        if self.kind == "ipm":
            return -z * mean
        if self.kind == "mimic":
            return honest[0]
        if self.kind in ("min-max", "min-sum"):
            z *= _largest(honest, -deviation, together=self.kind == "min-sum")
        return mean - z * deviation

    def rows(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """A poisoner's rows: with class y called C - 1 - y, or half with trigger and label 0."""
        if self.kind == "label-flip":
            return inputs, classes - 1 - labels
        half = torch.arange(len(labels), device=labels.device) % 2 == 0
        seen = half.view(-1, *[1] * (inputs.dim() - 1))
        return torch.where(seen, triggered(inputs), inputs), labels.masked_fill(half, 0)

    @staticmethod
    def tests(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What the success of a backdoor is the accuracy on: other classes with the trigger."""
        return triggered(inputs)[labels != 0], torch.zeros_like(labels[labels != 0])


def triggered(inputs: Tensor) -> Tensor:
    """The inputs with a bright patch in the last corner."""
    found, corner = inputs.clone(), slice(-PATCH, None)
    found[(..., corner, corner) if inputs.dim() > 2 else (..., corner)] = inputs.max()
    return found


def _largest(honest: Tensor, direction: Tensor, together: bool) -> float:
    """The largest c for which mean + c direction is not further from the honest than they are.

    The squared distance to vector i is a_i + 2 b_i c + d c^2, which must be at most the largest
    between two honest vectors (min-max), or on average at most the largest average (min-sum).
    """
    offset = honest.mean(0) - honest
    a, b, d = offset.square().sum(1), offset @ direction, direction.square().sum()
    squares = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").square()
    most = squares.max()
    if together:
        a, b, most = a.mean(), b.mean(), squares.mean(1).max()
    root = (b.square() - d * (a - most)).clamp(min=0).sqrt()
    return float(((root - b) / d).min()) if d > 0 else 0.0


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


class PoisonedRows:
    """The rows of a round, those of attackers changed."""

    def __init__(self, rows_of: Any, attackers: Attackers, classes: int, *asked: Any) -> None:
        self._rows, self._attackers, self._classes = rows_of(*asked), attackers, classes
        self.sizes = self._rows.sizes

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        inputs, labels = (each.clone() for each in self._rows(users, step))
        size = len(labels) // len(users)
        for at in np.flatnonzero(self._attackers.are(users)).tolist():
            own, attack = slice(at * size, (at + 1) * size), self._attackers.attack
            inputs[own], labels[own] = attack.rows(inputs[own], labels[own], self._classes)
        return inputs, labels


class Attacked(Changing):
    """Holds back what attackers would send until all honest updates of the round are known.

    `votes` are the momenta that the server compares, if it does. For `alie-own`, the mean and the
    mean square of the attackers' own updates over time are `known`.
    """

    def __init__(
        self,
        inner: LayerwiseAggregate,
        attackers: Attackers,
        layers: Layers,
        t: int,
        votes: Recall | None = None,
        known: Sequence[Recall] = (),
    ) -> None:
        super().__init__(inner, lambda update, _, user: update)
        self._attackers, self._layers, self._t = attackers, layers, t
        self._votes, self._known = votes, known
        self._honest: list[Tensors] = []
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
            self._honest.append(dict(update))
            super().add(update, weights, held, user)

    def end(self) -> None:
        """Send what was held back."""
        waiting, self._waiting = self._waiting, []
        attack, votes = self._attackers.attack, self._votes
        for update, weights, held, user in waiting:
            sent, aims = dict(update), self._guessed(user, update)
            for index, layer in enumerate(self._layers):
                own = {n: update[n] for n in layer.parameters if n in update}
                if not own or not self._attacks(index):
                    continue
                if attack.kind in KNOWING:
                    aims = self._wanted(index, own)
                elif not self._known:
                    sent |= attack.sent(own, self._t, int(user))
                for name in own.keys() & aims.keys():
                    aim = aims[name]
                    sent[name] = votes.sent_for(self._t, user, name, aim) if votes else aim
            super().add(sent, weights, held, user)

    def _guessed(self, user: UserId, update: Tensors) -> dict[str, Tensor]:
        """The mean of an attacker's own updates less z deviations, those of a momentum."""
        for power, table in enumerate(self._known, 1):
            own = {name: update[name] ** power for name in table.names if name in update}
            table.keep(self._t, user, own)
        found, terms = {}, 1 if self._votes is None else 2 * self._votes.window - 1
        for name in self._known[0].names if self._known else ():
            mean, square = (table.values(name)[table.rows_of([user])[0]] for table in self._known)
            deviation = ((square - mean**2).clamp(min=0) / terms).sqrt()
            found[name] = mean - self._attackers.attack.strength * deviation
        return found

    def _attacks(self, index: int) -> bool:
        """Whether a layer (from 0) is attacked in this round."""
        where, half = self._attackers.attack.where, len(self._layers) // 2
        if where == "rare":
            sent = sum(self._layers[index].parameters[0] in each for each in self._honest)
            return 2 * sent < self._attackers.users - self._attackers.count
        return where == "all" or (where == "first") == (index < half)

    def _wanted(self, index: int, own: Tensors) -> dict[str, Tensor]:
        """What attackers want to be counted as in a layer; nothing if they cannot know."""
        if self._votes is None:
            honest = [
                each
                for each in self._honest
                if all(n in each and each[n].shape == g.shape for n, g in own.items())
            ]
            values = [torch.stack([each[name] for each in honest]) for name in own if honest]
        else:
            users = self._votes.voters(self._t, index)
            rows = self._votes.rows_of(user for user in users if not self._attackers.are(user))
            values = [self._votes.values(name)[rows] for name in own if len(rows)]
        if not values:
            return {}
        flat = self._attackers.attack.wanted(torch.cat([each.flatten(1) for each in values], 1))
        parts = flat.split_with_sizes([each[0].numel() for each in values])
        return {n: p.view_as(g) for (n, g), p in zip(own.items(), parts, strict=True)}
