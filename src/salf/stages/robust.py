"""Robust aggregation: a step that a few bad users cannot control, also if they hide.

The method says how far a layer moves, by sum_u c[l, u], and the rule where to, from the momenta of
all users that lately sent it, also of those absent now (`Recall`). These vary less than updates, so
that attackers have less room to hide, and however few arrive, many are compared. `mixed` is
nearest-neighbour mixing (Allouah et al. 2023): every momentum becomes the mean of the n - f nearest
to it, and the step is the mean of these. A layer that fewer than 2f + 1 users sent lately stays:
nobody can tell who is honest. Buffers are combined alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.core.aggregate import LayerwiseAggregate, PerLayer, Step, UserId, is_counter
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.methods import Method, Recalled
from salf.stages.recall import Recall, StandIns

RULES = ("none", "mixed", "median")
WINDOW = 7  # updates in a momentum, which makes its factor 6/7
USERS = 1000  # that are remembered at most
JUDGES = 64  # users who choose their nearest: more would make the cost quadratic in users
CELLS = 2**18  # values that are worked on at a time: more would leave the caches


@dataclass(frozen=True)
class Robust:
    """A rule, and how many attackers it tolerates."""

    rule: str
    attackers: int = 1
    gain: float = 1.0  # that the step is multiplied by

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
        why = ""
        if method.defines("heard"):
            why = f"the server of {method.name} keeps a sum over all users, which it cannot protect"
        elif method.asks.narrows:
            why = f"users of {method.name} train parts of the network, which it cannot compare"
        if why:
            raise SalfError(f"robust={self.rule!r} does not work: {why}; set robust='none'.")

    def __str__(self) -> str:
        return f"{self.rule}, tolerating {self.attackers}; the server keeps a vote of every user"

    @property
    def needed(self) -> int:
        """How many users make a majority of honest ones: 2f + 1."""
        return 2 * self.attackers + 1

    def memory(self, method: Method, layers: Layers, like: Mapping[str, Tensor]) -> Recall:
        """What the rule remembers of users, which is the method's memory as well."""
        like = {name: value for name, value in like.items() if not is_counter(value)}
        rule = method.memory() or Recalled(0.0, None, USERS)
        return Recall(layers, like, rule, WINDOW)

    def combined(self, rows: Mapping[str, Tensor], weights: Floats) -> dict[str, Tensor]:
        """What the rule makes of vectors with a row per user: a mean, parameter by parameter.

        Nobody weighs more than the median user, so that no weight makes a vote of two.
        """
        own = np.minimum(weights, np.sort(weights)[(len(weights) - 1) // 2])
        flat = {name: values.flatten(1) for name, values in rows.items()}
        if self.rule == "mixed":
            shares = mixed(*products([*flat.values()], len(own)), own, self.attackers)
            found = {n: torch.mv(v.T, v.new_tensor(shares)) for n, v in flat.items()}
        else:
            found = {name: v.median(0).values for name, v in flat.items()}
        return {name: value.view(rows[name].shape[1:]) for name, value in found.items()}


def products(parts: Sequence[Tensor], users: int) -> tuple[Ints, Floats, Floats]:
    """The judges, their vectors' inner products with everybody's, [judges, users], squared norms.

    The judges are all users, or `JUDGES` of them at equal distances. A vector is given in parts.
    """
    judges = np.linspace(0, users - 1, min(users, JUDGES)).round().astype(np.int64)
    inner, squares = np.zeros((len(judges), users)), np.zeros(users)
    for values in parts:
        for some in torch.split(values, max(1, CELLS // users), dim=1):
            exact = some.cpu().double()
            inner += (exact[judges] @ exact.T).numpy()
            squares += exact.square().sum(1).numpy()
    return judges, inner, squares


def mixed(who: Ints, inner: Floats, squares: Floats, weights: Floats, f: int) -> Floats:
    """The share of every user in the mean of mixed vectors.

    A judge's mixed vector is the mean of the n - f nearest to its own, so the step is a sum over
    users, in which those count less whom many judges leave out. First, vectors are scaled down to
    the median norm.
    """
    norms = np.sqrt(squares)
    bound = np.median(norms)
    scale = np.where(norms > bound, bound / np.where(norms > 0, norms, 1.0), 1.0)
    squares = squares * scale**2
    distances = squares[who, None] + squares - 2 * inner * scale[who, None] * scale
    near = np.tile(weights, (len(who), 1))
    furthest = np.argsort(distances, axis=1, kind="stable")[:, len(weights) - f :]
    np.put_along_axis(near, furthest, 0.0, axis=1)
    near /= near.sum(axis=1, keepdims=True)
    return np.asarray(weights[who] @ near / weights[who].sum() * scale)


class Voting(StandIns):
    """Remembers every user's update as it comes; the step is what the rule makes of all votes."""

    def __init__(
        self,
        inner: LayerwiseAggregate,
        recall: Recall,
        t: int,
        own: Mapping[UserId, float],
        rule: Robust,
    ) -> None:
        super().__init__(inner, recall, t, own)
        self._rule = rule
        self._weights: dict[int, list[float]] = {}  # by layer: of those who sent it in this round

    def _kept(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        recall, values = self._recall, dict(update)
        index_of = recall.layers.index_of
        for index in dict.fromkeys(index_of[name] for name in update):
            if weight := 1.0 if weights is None else float(weights[index]):
                self._weights.setdefault(index, []).append(weight)
                for name in recall.layers[index].parameters:
                    # Of a parameter that the user's model did not use there is no gradient.
                    values.setdefault(name, torch.zeros_like(recall.like[name]))
        for name in recall.like.keys() & update.keys() - set(recall.names):
            values[name] = update[name] + recall.like[name]
        super()._kept(values, weights, user)
        return update

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step, recall = Step({}), self._recall
        for name, value in self._inner.total(weights, divisor).values.items():
            if is_counter(value):  # the others are what the rule makes of them
                step.values[name] = value
        for index, layer in enumerate(recall.layers):
            here = self._weights.get(index, [])
            far = self._rule.gain
            if not recall.rule.beta:  # the method moves what arrived, not all that is remembered
                cap = sorted(here)[(len(here) - 1) // 2] if here else 0.0
                far *= sum(min(weight, cap) for weight in here)
                far /= 1.0 if divisor is None else float(divisor[index])
            voters = recall.voters(self._t, index)
            if not far or len(voters) < self._rule.needed:
                continue
            rows = recall.rows_of(voters)
            for names in (layer.parameters, layer.buffers):
                values = {n: recall.values(n)[rows] for n in names if n in recall.like}
                trained = names is layer.parameters
                if values and (here or trained):
                    found = self._rule.combined(values, recall.weight[rows])
                    for name, value in found.items():
                        step.values[name] = far * value if trained else value - recall.like[name]
        return step
