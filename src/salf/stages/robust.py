"""Robust aggregation: a step that a few users whose updates stand out cannot control.

A bad user that stays within the spread of the others' updates gets through
(docs/robust.md#what-gets-through).

The step of layer l is normally sum_u c[l, u] g_u. A rule that tolerates f attackers replaces it by
(sum_u c[l, u]) times a mean (trimmed, clip) or median of every coordinate, of the 2f + 1 or more
users that sent the layer. Which users are left out goes by their number, and nobody weighs more
than the median user, so that staying away gives a bad user no power.

In a layer that fewer users sent in a round, whole updates are compared with what other users last
sent of it, however long ago (`Votes`): the f furthest are left out, the others move the layer by
their mean. A layer that fewer than 2f + 1 users have ever sent does not move. Buffers are combined
by the same rules, and counters as always.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import Held, LayerwiseAggregate, PerLayer, Step, UserId, is_counter
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.methods import Method

RULES = ("none", "median", "trimmed", "clip")
ROUNDING = 1e-6  # of a sum of weights
CELLS = 2**18  # values that are sorted at a time: more would leave the caches
ALIGNED = 64  # columns: then sums are rounded as if all were added at once
LARGE = 3.0  # times the median norm: an update that is not just of a larger batch or more steps


@dataclass(frozen=True)
class Robust:
    """A rule, and how many attackers it tolerates."""

    rule: str
    attackers: int = 1

    def __post_init__(self) -> None:
        if self.rule not in RULES[1:]:
            raise unknown("robust rule", self.rule, RULES)
        if self.attackers < 1:
            raise SalfError(
                f"attackers must be at least 1, not {self.attackers}; robust='none' trusts all "
                "users."
            )

    def check(self, method: Method) -> None:
        """Refuse a method whose users or server the rule does not protect."""
        if method.defines("heard"):
            raise SalfError(
                f"the server of {method.name} keeps a sum over all users, which a robust rule does "
                "not protect: set robust='none'."
            )
        if method.asks.narrows:
            raise SalfError(
                f"users of {method.name} train parts of the network, which a robust rule cannot "
                "compare: set robust='none'."
            )

    def __str__(self) -> str:
        return f"{self.rule}, tolerating {self.attackers}; a round's updates are held in memory"

    @property
    def needed(self) -> int:
        """How many users make a majority of honest ones: 2f + 1."""
        return 2 * self.attackers + 1

    @property
    def votes(self) -> int:
        """How many users' updates are compared, old ones included, if there are as many."""
        return 4 * self.attackers + 3

    def located(self, values: Tensor, weights: Tensor) -> Tensor:
        """Where values [users, n] of these weights [users, 1] are, by the rule.

        clip: their mean, of updates that were scaled down to the median norm. trimmed: their mean
        without the f values furthest from the median ("mean around median", Xie et al. 2018).
        median: their weighted median without the f largest and the f smallest.
        """
        if self.rule == "clip":
            return _mean(values, weights)
        f, count = self.attackers, len(values)
        if self.rule == "trimmed":
            middle = (values.kthvalue(k, dim=0).values for k in ((count + 1) // 2, count // 2 + 1))
            centre = sum(middle) / 2  # linear in the users, unlike sorting
            furthest = (values - centre).abs().topk(f, dim=0).indices
            return _mean(values, weights.expand_as(values).scatter(0, furthest, 0.0))
        ordered, places = values.sort(dim=0)
        rank = torch.arange(count, device=values.device).unsqueeze(1)
        kept = (rank >= f) & (rank < count - f)
        upto = (weights.expand_as(values).gather(0, places) * kept).cumsum(0)
        half = upto[-1] / 2
        lower = (upto < half * (1 - ROUNDING)).sum(0, keepdim=True)
        upper = (upto <= half * (1 + ROUNDING)).sum(0, keepdim=True).clamp(max=count - 1)
        return (ordered.gather(0, lower) + ordered.gather(0, upper))[0] / 2


@dataclass(frozen=True)
class Ballot:
    """Several users' updates of a layer, one in a row: gradients, and from `split` on buffers."""

    values: Tensor
    weights: Sequence[float]
    split: int

    @property
    def parts(self) -> list[Tensor]:
        """The gradients and the buffers, without a part that is empty."""
        both = self.values[:, : self.split], self.values[:, self.split :]
        return [part for part in both if part.shape[1]]

    def capped(self) -> "Ballot":
        """Nobody weighs more than the median user: weight can be had by staying away."""
        cap = sorted(self.weights)[(len(self.weights) - 1) // 2]
        return replace(self, weights=[min(weight, cap) for weight in self.weights])

    def clipped(self) -> "Ballot":
        """No update is above the median norm; gradients and buffers apart."""
        return replace(self, values=torch.cat([_clipped(part)[0] for part in self.parts], 1))

    def suspects(self, count: int) -> set[int]:
        """The rows of so many votes furthest from the median of all, as whole vectors.

        Sizes differ for good reasons, such as batches and local steps, so lengths count only above
        `LARGE` times the median norm.
        """
        found: set[int] = set()
        for part in self.parts:
            alike, norms = _clipped(part)
            distances = torch.linalg.vector_norm(alike - alike.median(0).values, dim=1).cpu()
            distances[norms > LARGE * norms.quantile(0.5)] = torch.inf
            furthest = distances.topk(count).indices.tolist()
            found |= {row for row in furthest if distances[row] > 0}
        return found

    def combined(self, rule: Robust | None) -> Tensor:
        """What a rule (None: the mean) makes of the updates, times their weight."""
        values = self.clipped().values if rule is not None and rule.rule == "clip" else self.values
        weights = values.new_tensor(self.weights).unsqueeze(1)
        if rule is None:
            mean = _mean(values, weights)
        else:  # some columns at a time, because sorting takes several times the memory
            width = max(1, CELLS // len(values) // ALIGNED) * ALIGNED
            parts = torch.split(values, width, dim=1)
            mean = torch.cat([rule.located(part, weights) for part in parts])
        total = weights.sum(0)
        gradients = torch.arange(len(mean), device=mean.device) < self.split
        return mean * torch.where(gradients, total, total.clamp(max=1.0))


@dataclass
class Votes:
    """The votes that a rule keeps from round to round.

    It takes the memory of every update of a round, users times the model instead of one model, and
    of `rule.votes` more.
    """

    rule: Robust
    # By layer, from 0, and user: the latest updates, each in a row, newest first, for rounds in
    # which few users send the layer.
    kept: dict[int, dict[UserId, Tensor]] = field(default_factory=dict)

    def keep(self, index: int, now: Mapping[UserId, Tensor]) -> dict[UserId, Tensor]:
        """Keep the latest votes on a layer, each user's last; the result is those of others."""
        old = {user: sent for user, sent in self.kept.get(index, {}).items() if user not in now}
        # In the order of the users, which a replay has too, unlike that in which updates came.
        newest = sorted(now, key=lambda user: (len(str(user)), user))
        votes = {user: now[user] for user in newest} | old
        self.kept[index] = dict(islice(votes.items(), self.rule.votes))
        return old

    def state(self) -> tuple[list[list[Any]], dict[str, Tensor]]:
        kept = [(index, user, sent) for index, by in self.kept.items() for user, sent in by.items()]
        tensors = {f"{place}": sent for place, (_, _, sent) in enumerate(kept)}
        return [[index, user] for index, user, _ in kept], tensors

    def load_state(self, kept: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> None:
        self.kept = {}
        for place, (index, user) in enumerate(kept):
            self.kept.setdefault(int(index), {})[user] = tensors[f"{place}"]


class RobustAggregate(LayerwiseAggregate):
    """Every user's layers by themselves, until they are combined."""

    def __init__(self, votes: Votes, layers: Layers, like: Mapping[str, Tensor]) -> None:
        super().__init__(layers, like, separate=True)
        self._votes, self._rule = votes, votes.rule
        # In this round, by layer and user: the weight in the step, and all numbers in a row.
        self._sent: dict[int, dict[UserId, tuple[float, Tensor]]] = {}
        self._counters: dict[int, dict[str, Tensor]] = {}
        self._came: set[str] = set()  # names that somebody sent
        # The numbers of every layer by name, in the order in which they are in a row.
        self._names: list[list[str]] = []
        for layer in layers:
            names = [n for n in (*layer.parameters, *layer.buffers) if not is_counter(like[n])]
            self._names.append(sorted(names, key=lambda name: not like[name].requires_grad))

    def add(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        held: Held | None = None,
        user: UserId | None = None,
    ) -> None:
        assert user is not None
        for index in dict.fromkeys(self._index(name) for name in update):
            if not (weight := 1.0 if weights is None else float(weights[index])):
                continue
            known = self._counters.setdefault(index, {})
            for name in self._layers[index].buffers:
                if name in update and is_counter(value := update[name]):
                    # As always: the furthest user's count stands.
                    known[name] = torch.maximum(value, known.get(name, value))
            # Of a parameter that the user's model did not use there is no gradient.
            row = [
                update[name] if name in update else torch.zeros_like(self._like[name]).detach()
                for name in self._names[index]
            ]
            numbers = torch.cat([each.reshape(-1) for each in row])
            self._sent.setdefault(index, {})[user] = weight, numbers
            self._came |= update.keys()
            self._reached[index] += 1

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step = Step({})
        for index, sent in self._sent.items():
            names, by = self._names[index], 1.0 if divisor is None else float(divisor[index])
            split = sum(self._like[n].numel() for n in names if self._like[n].requires_grad)
            now = {user: numbers for user, (_, numbers) in sent.items()}
            old = self._votes.keep(index, now)
            scaled = [weight / by for weight, _ in sent.values()]
            fresh = Ballot(torch.stack([*now.values()]), scaled, split).capped()
            enough = len(now) >= self._rule.needed
            used = fresh if enough else self._plausible(fresh, [*now.values(), *old.values()])
            if used is not None:
                found = self._split(names, used.combined(self._rule if enough else None))
                step.values.update({name: v for name, v in found.items() if name in self._came})
                step.values.update(self._counters[index])
        return step

    def sum_of(self, rows: Mapping[str, Tensor], weights: PerLayer) -> dict[str, Tensor]:
        """The sum over users of what is remembered of them, combined by the rule."""
        users = np.flatnonzero(weights).tolist()
        if len(users) < self._rule.needed:
            return {}
        values = torch.cat([value[users].reshape(len(users), -1) for value in rows.values()], 1)
        ballot = Ballot(values, [float(weights[user]) for user in users], values.shape[1])
        return self._split(list(rows), ballot.capped().combined(self._rule))

    def _split(self, names: Sequence[str], row: Tensor) -> dict[str, Tensor]:
        like = [self._like[name] for name in names]
        parts = row.split_with_sizes([each.numel() for each in like])
        return {n: v.to(k.dtype).view(k.shape) for n, v, k in zip(names, parts, like, strict=True)}

    def _plausible(self, fresh: Ballot, votes: Sequence[Tensor]) -> Ballot | None:
        """Select, of too few updates, those that are like what users last sent of this layer.

        They are clipped to the median norm, and have the weight of those left out as well.
        """
        votes = votes[: self._rule.votes]
        if len(votes) < self._rule.needed:
            return None  # nobody can tell
        both = replace(fresh, values=torch.stack([*votes]))
        suspects = both.suspects(self._rule.attackers)
        left = [row for row in range(len(fresh.weights)) if row not in suspects]
        if not left:
            return None
        gain = sum(fresh.weights) / sum(fresh.weights[row] for row in left)
        weights = [fresh.weights[row] * gain for row in left]
        return replace(fresh, values=both.clipped().values[left], weights=weights)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum(0)
    return (values * weights).sum(0) / total.where(total > 0, 1.0)


def _clipped(values: Tensor) -> tuple[Tensor, Tensor]:
    """The rows, none above their median norm, and their norms."""
    norms = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).float().cpu()
    bound = float(norms.quantile(0.5))
    factors = [bound / norm if norm > bound else 1.0 for norm in norms.tolist()]
    return values * values.new_tensor(factors).unsqueeze(1), norms
