"""Robust aggregation: a step that a few users whose updates stand out cannot control.

A bad user that stays within the spread of the others' updates gets through
(docs/robust.md#what-gets-through).

The step of layer l is normally sum_u c[l, u] g_u. With a rule that tolerates f attackers it is

- trimmed: (sum_u c[l, u]) times the mean of every coordinate, weighted by c, without the f values
  furthest from its median ("mean around median": Xie et al., "Generalized Byzantine-tolerant SGD",
  2018),
- median: the same with the weighted median, after the f largest and the f smallest values are gone,
- clip: sum_u c[l, u] g_u with every update scaled down to the median norm.

What is left out goes by the number of users, never by their weight, and nobody weighs more than the
median user: methods that weigh rare users more (inverse probability) give no more power to a bad
user that stays away.

None of this works for a layer that fewer than 2f + 1 users sent in a round. There whole updates are
compared with what other users last sent of the layer, however long ago: the f that are far larger
or point furthest from the median are left out, the others move the layer by their mean. While fewer
than 2f + 1 users have ever sent a layer, it does not move. Buffers are combined by the same rules,
and counters as always.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import Held, LayerwiseAggregate, PerLayer, Step, UserId, is_counter
from salf.core.layers import Layers
from salf.core.rules import Tensors

RULES = ("none", "median", "trimmed", "clip")
ROUNDING = 1e-6  # of a sum of weights
LARGE = 3.0  # times the median norm: an update that is not just of a larger batch or more steps


@dataclass(frozen=True)
class Sent:
    """One user's update of a layer, with its weight in the step of its round.

    Where `partial`, entries that the user's narrower network does not hold are NaN.
    """

    weight: float
    values: Mapping[str, Tensor]
    partial: bool = False

    def changed(self, change: Callable[[str, Tensor], Tensor]) -> "Sent":
        """This update with other values."""
        return replace(self, values={name: change(name, v) for name, v in self.values.items()})


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


@dataclass
class Votes:
    """The votes that a rule keeps from round to round.

    It takes the memory of every update of a round, users times the model instead of one model, and
    of `rule.votes` more.
    """

    rule: Robust
    # By layer, from 0, and user: the latest updates, newest first, for rounds in which few users
    # send the layer.
    kept: dict[int, dict[UserId, Sent]] = field(default_factory=dict)

    def keep(self, index: int, now: Mapping[UserId, Sent], old: Mapping[UserId, Sent]) -> None:
        """Keep the latest votes on a layer, each user's last."""
        # In the order of the users, which a replay has too, unlike that in which updates came.
        newest = sorted(now, key=lambda user: (len(str(user)), user))[: self.rule.votes]
        # Copies, because an engine may use the memory of its gradients again.
        votes = {u: now[u].changed(lambda _, value: value.clone()) for u in newest} | dict(old)
        self.kept[index] = dict(islice(votes.items(), self.rule.votes))

    def state(self) -> tuple[list[list[Any]], dict[str, Tensor]]:
        kept = [(index, user, s) for index, by in self.kept.items() for user, s in by.items()]
        tensors = {
            f"{place}/{name}": value
            for place, (_, _, sent) in enumerate(kept)
            for name, value in sent.values.items()
        }
        return [[index, user, sent.partial] for index, user, sent in kept], tensors

    def load_state(self, kept: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> None:
        values: list[dict[str, Tensor]] = [{} for _ in kept]
        for key, tensor in tensors.items():
            place, _, name = key.partition("/")
            values[int(place)][name] = tensor
        self.kept = {}
        for (index, user, partial), own in zip(kept, values, strict=True):
            self.kept.setdefault(int(index), {})[user] = Sent(0.0, own, bool(partial))


class RobustAggregate(LayerwiseAggregate):
    """Every user's layers by themselves, until they are combined."""

    def __init__(self, votes: Votes, layers: Layers, like: Mapping[str, Tensor]) -> None:
        super().__init__(layers, like, separate=True)
        self._votes, self._robust = votes, votes.rule
        self._sent: dict[int, dict[UserId, Sent]] = {}  # in this round

    def add(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        held: Held | None = None,
        user: UserId | None = None,
    ) -> None:
        assert user is not None
        by_layer: dict[int, dict[str, Tensor]] = {}
        for name, value in update.items():
            index = self._index(name)
            if weights is None or weights[index]:
                whole = value if held is None else self._whole(name, value, held)
                by_layer.setdefault(index, {})[name] = whole
        for index, values in by_layer.items():
            weight = 1.0 if weights is None else float(weights[index])
            sent = Sent(weight, values, held is not None)
            others = self._sent.setdefault(index, {})
            others[user] = _merged(others[user], sent) if user in others else sent
            self._reached[index] += 1

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        return self._combined(divisor, entrywise=False)

    def average(self) -> Step:
        """A mean of each entry over the users who hold it."""
        return self._combined(None, entrywise=True)

    def sum_of(self, rows: Mapping[str, Tensor], weights: PerLayer) -> dict[str, Tensor]:
        """The sum over users of what is remembered of them, combined by the rule."""
        step, users = Step({}), [row for row, weight in enumerate(weights) if weight]
        sent = [Sent(float(weights[u]), {n: v[u] for n, v in rows.items()}) for u in users]
        if sent:
            rule = self._robust
            self._combine(step, _capped(sent), rule.rule, rule.needed, entrywise=False)
        return step.values

    def _combined(self, divisor: PerLayer | None, entrywise: bool) -> Step:
        step, robust = Step({}), self._robust
        for index, sent in self._sent.items():
            by = 1.0 if divisor is None else float(divisor[index])
            now = {u: replace(each, weight=each.weight / by) for u, each in sent.items()}
            old = {u: each for u, each in self._votes.kept.get(index, {}).items() if u not in now}
            self._votes.keep(index, now, old)
            fresh = _capped(list(now.values()))
            if len(fresh) >= robust.needed:
                self._combine(step, fresh, robust.rule, robust.needed, entrywise)
            elif plausible := self._plausible(fresh, list(old.values())):
                self._combine(step, plausible, "mean", 1, entrywise)
        return step

    def _plausible(self, fresh: Sequence[Sent], old: Sequence[Sent]) -> list[Sent]:
        """Select, of too few updates, those that are like what users last sent of this layer.

        They are clipped to the median norm, and have the weight of those left out as well.
        """
        votes = [*fresh, *old][: self._robust.votes]
        if len(votes) < self._robust.needed:
            return []  # nobody can tell
        gradients, buffers = self._kinds(votes)
        suspects = self._suspects(votes, gradients) | self._suspects(votes, buffers)
        clipped = self._entries_of_enough(self._clipped(votes))
        left = [clipped[place] for place in range(len(fresh)) if place not in suspects]
        if not left:
            return []
        gain = sum(each.weight for each in fresh) / sum(each.weight for each in left)
        return [replace(each, weight=each.weight * gain) for each in left]

    def _suspects(self, votes: Sequence[Sent], names: Sequence[str]) -> set[int]:
        """The places of the f votes furthest from the median of all, as whole vectors.

        Sizes differ for good reasons, such as batches and local steps, so lengths count only above
        `LARGE` times the median norm.
        """
        numbers = [name for name in names if not is_counter(self._like[name])]
        if not numbers:
            return set()
        norms = torch.tensor([_norm(each, numbers) for each in votes])
        alike = _clipped(votes, numbers)
        rows = torch.cat([self._stacked(name, alike)[0].flatten(1) for name in numbers], dim=1)
        distances = torch.linalg.vector_norm(rows - rows.median(0).values, dim=1).cpu()
        distances[norms > LARGE * norms.quantile(0.5)] = torch.inf
        furthest = distances.topk(self._robust.attackers).indices.tolist()
        return {place for place in furthest if distances[place] > 0}

    def _entries_of_enough(self, votes: Sequence[Sent]) -> Sequence[Sent]:
        """The votes without the entries of narrower networks that too few of them hold."""
        if not any(each.partial for each in votes):
            return votes
        held = {
            name: torch.stack([~each.values[name].isnan() for each in votes]).sum(0)
            >= self._robust.needed
            for name in votes[0].values
            if not is_counter(votes[0].values[name])
        }

        def enough(name: str, value: Tensor) -> Tensor:
            return value.where(held[name], torch.nan) if name in held else value

        return [replace(each.changed(enough), partial=True) for each in votes]

    def _combine(
        self,
        step: Step,
        sent: Sequence[Sent],
        rule: str,
        needed: int,
        entrywise: bool,
    ) -> None:
        """Put what users sent of a layer into the step, where there are enough of them."""
        if rule == "clip":
            sent = self._clipped(sent)
        for name in dict.fromkeys(name for each in sent for name in each.values):
            mine = [each for each in sent if name in each.values]
            if is_counter(mine[0].values[name]):  # as always: the furthest user's count stands
                step.values[name] = torch.stack([each.values[name] for each in mine]).amax(0)
                continue
            values, weights = self._stacked(name, mine)
            enough = (weights > 0).sum(0) >= needed
            if not bool(enough.any()):
                continue
            mean, of_all = _located(values, weights, rule, self._robust.attackers), weights.sum(0)
            is_buffer = not self._like[name].requires_grad
            scale = torch.ones_like(of_all) if entrywise else of_all
            scale = scale.clamp(max=1.0) if is_buffer else scale
            step.values[name] = (mean * scale).where(enough, 0.0)
            if not bool(enough.all()):
                step.held[name] = enough.expand_as(mean)

    def _kinds(self, sent: Sequence[Sent]) -> tuple[list[str], list[str]]:
        names = list(dict.fromkeys(name for each in sent for name in each.values))
        gradients = [name for name in names if self._like[name].requires_grad]
        return gradients, [name for name in names if name not in gradients]

    def _clipped(self, sent: Sequence[Sent]) -> Sequence[Sent]:
        """The updates, none above the median norm; gradients and buffers apart."""
        for names in self._kinds(sent):
            sent = _clipped(sent, names)
        return sent

    def _whole(self, name: str, value: Tensor, held: Held) -> Tensor:
        """A narrower network's entries in a tensor of full shape, and NaN for the others."""
        full = torch.full_like(self._like[name], torch.nan, requires_grad=False)
        full[held[name]] = value
        return full

    def _stacked(self, name: str, sent: Sequence[Sent]) -> tuple[Tensor, Tensor]:
        """Values [users, ...] and weights of the same rank, 0 where a user holds no such entry."""
        like = self._like[name]
        values = torch.stack([each.values[name].to(like) for each in sent])
        weights = like.new_tensor([each.weight for each in sent], requires_grad=False)
        weights = weights.view(-1, *[1] * like.dim())
        if not any(each.partial for each in sent):
            return values, weights
        absent = values.isnan()
        return values.where(~absent, 0.0), weights.where(~absent, 0.0)


def _capped(sent: Sequence[Sent]) -> list[Sent]:
    """Nobody weighs more than the median user: a weight, too, can be asked for by staying away."""
    weights = sorted(each.weight for each in sent)
    cap = weights[(len(weights) - 1) // 2]
    return [replace(each, weight=min(each.weight, cap)) for each in sent]


def _located(values: Tensor, weights: Tensor, rule: str, f: int) -> Tensor:
    """Where the values [users, ...] are, by the rule; a weight of 0 is no value."""
    if rule in ("clip", "mean"):
        return _mean(values, weights)
    present = (weights > 0).expand_as(values)
    count = present.sum(0, keepdim=True)
    # Those who hold no such entry come last.
    ordered, places = values.where(present, torch.inf).sort(dim=0)
    if rule == "trimmed":
        low, high = ((count - 1) // 2).clamp(min=0), (count // 2).clamp(max=len(values) - 1)
        centre = (ordered.gather(0, low) + ordered.gather(0, high)) / 2
        furthest = (values - centre).abs().where(present, -1.0).topk(f, dim=0).indices
        return _mean(values, weights.expand_as(values).scatter(0, furthest, 0.0))
    rank = torch.arange(len(values), device=values.device).view(-1, *[1] * (values.dim() - 1))
    kept = (rank >= f) & (rank < count - f)
    upto = (weights.expand_as(values).gather(0, places) * kept).cumsum(0)
    half = upto[-1] / 2
    lower = (upto < half * (1 - ROUNDING)).sum(0, keepdim=True)
    upper = (upto <= half * (1 + ROUNDING)).sum(0, keepdim=True).clamp(max=len(values) - 1)
    return (ordered.gather(0, lower) + ordered.gather(0, upper))[0] / 2


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum(0)
    return (values * weights).sum(0) / total.where(total > 0, 1.0)


def _clipped(sent: Sequence[Sent], names: Sequence[str]) -> list[Sent]:
    """Every update, its values of these names scaled down to the median norm."""
    norms = torch.tensor([_norm(each, names) for each in sent])
    bound = float(norms.quantile(0.5))

    def clipped(each: Sent, norm: float) -> Sent:
        if not norm > bound:
            return each
        factor = bound / norm
        return each.changed(lambda n, v: v if is_counter(v) or n not in names else v * factor)

    return [clipped(*pair) for pair in zip(sent, norms.tolist(), strict=True)]


def _norm(sent: Sent, names: Sequence[str]) -> float:
    mine = [sent.values[name] for name in names if name in sent.values]
    squares = [
        float(torch.linalg.vector_norm(value.nan_to_num(), dtype=torch.float64)) ** 2
        for value in mine
        if not is_counter(value)
    ]
    return float(sum(squares) ** 0.5)


def _merged(one: Sent, other: Sent) -> Sent:
    """Two updates of one user in one round: one voice, with the weight of both."""
    weight = one.weight + other.weight

    def mean(name: str, value: Tensor) -> Tensor:
        if is_counter(value):
            return torch.maximum(value, other.values[name])
        return (value * one.weight + other.values[name] * other.weight) / weight

    return replace(one.changed(mean), weight=weight)
