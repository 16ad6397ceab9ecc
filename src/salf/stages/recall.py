"""The server's memory of each user's last update, and steps that use it.

With a share a[l, u], a scale s[l] and a recall beta, the step of layer l is

    s_l sum_{u arrived} a[l, u] (g[l, u] - beta y[l, u])  +  beta mean_u y[l, u]

where y[l, u] is the last gradient of layer l that user u sent (0 before the first), times what is
left of it after so many rounds. The mean is over all users (`Remembering`). Or what is remembered
stands in for those who are absent, as far as it has not faded (`StandIns`): with r[l, u] = 1 for
who arrived, and what is left of it for who did not,

    sum_u r[l, u] y[l, u] / sum_u r[l, u],    y being new for those who arrived.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from salf.core.aggregate import Changing, LayerwiseAggregate, PerLayer, Step, UserId
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.methods import Recalled


class Recall:
    """A table with a row for each user remembered: its last gradient of every layer, and when.

    It has at most `rule.users` rows, so it takes as many times the memory of the model, and that of
    the updates of the open round. A user too many takes the place of the one that has been away for
    longest, whose gradients faded most.
    """

    def __init__(
        self,
        layers: Layers,
        like: Mapping[str, Tensor],
        rule: Recalled,
    ) -> None:
        self.layers, self.rule = layers, rule
        self._like = {name: tensor for name, tensor in like.items() if tensor.requires_grad}
        self._like = {name: self._like[name] for name in layers.index_of if name in self._like}
        self._row: dict[UserId, int] = {}
        self._values = {
            name: tensor.new_empty((0, *tensor.shape)) for name, tensor in self._like.items()
        }
        self._last: Ints = np.zeros((0, len(layers)), np.int64)  # the round of each layer; 0: none
        self._weight: Floats = np.zeros(0)
        self._new: dict[UserId, Tensors] = {}  # of the round that is open

    @property
    def users(self) -> int:
        return len(self._row)

    @property
    def names(self) -> Collection[str]:
        return self._values

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in self._values.values())

    def faded(self, user: UserId, name: str, t: int) -> Tensor | None:
        """y[l, u] as it counts in round t; None if there is none."""
        row = self._row.get(user)
        if row is None or not (last := int(self._last[row, self.layers.index_of[name]])):
            return None
        return self._values[name][row] * float(self._left(np.array(t - last)))

    def left(self, t: int, users: Sequence[UserId]) -> Floats:
        """The part left in round t of each user's last update, [users, L]; 0 if nothing was."""
        rows = np.array([self._row.get(user, -1) for user in users], np.int64)
        last = np.concatenate(
            [self._last, np.zeros_like(self._last[:1], shape=(1, len(self.layers)))]
        )
        return np.where(last[rows] > 0, self._left(t - last[rows]), 0.0)

    @property
    def remembered(self) -> list[UserId]:
        """The users that are remembered, row by row."""
        return sorted(self._row, key=self._row.__getitem__)

    def absent(self, t: int, layer: int, here: Iterable[UserId]) -> Floats:
        """The weights in round t of the rows of absent users, in a layer (from 0)."""
        last = self._last[:, layer]
        counts = np.where(last > 0, self._left(t - last), 0.0) * self._weight
        counts[[self._row[user] for user in here if user in self._row]] = 0.0
        return counts

    def rows(self, layer: int) -> dict[str, Tensor]:
        """The memory of a layer (from 0), [rows, ...], by name."""
        names = self.layers[layer].parameters
        return {name: self._values[name] for name in names if name in self._values}

    def mean(self, t: int, total: float, sums: LayerwiseAggregate) -> dict[str, Tensor]:
        """sum_u weight_u y[l, u] / total, of the layers of which something is remembered.

        `sums` says what a sum over users is: where some may be bad, another than the plain one.
        """
        found: dict[str, Tensor] = {}
        left = np.where(self._last > 0, self._left(t - self._last), 0.0)
        weights = left * self._weight[:, None] / total
        for index in range(len(self.layers)):
            if weights[:, index].any():
                found |= sums.sum_of(self.rows(index), weights[:, index])
        return found

    def _left(self, age: Ints) -> Floats:
        fade = self.rule.fade
        return np.ones(age.shape) if fade is None else np.asarray(fade / (fade + age))

    def note(self, user: UserId, update: Tensors) -> None:
        """A user's update of the round that is open; an empty one takes nobody's place."""
        if update:
            self._new[user] = update

    def learn(self, t: int, weights: Mapping[UserId, float]) -> None:
        """Round t is over: its updates are the last ones of their users, who weigh 1 or this."""
        for user, update in self._new.items():
            row = self._place(user)
            self._weight[row] = weights.get(user, 1.0)
            for name, value in update.items():
                self._values[name][row] = value
                self._last[row, self.layers.index_of[name]] = t
        self._new = {}

    def _place(self, user: UserId) -> int:
        if user in self._row:
            return self._row[user]
        if len(self._row) < self.rule.users:
            self._row[user] = row = len(self._row)
            if row >= len(self._weight):
                self._grow(min(self.rule.users, max(8, 2 * row)))
            return row
        # The row decides between equally old ones, so that a server started again chooses alike.
        oldest = min(self._row, key=lambda one: (self._last[self._row[one]].max(), self._row[one]))
        self._row[user] = row = self._row.pop(oldest)
        self._last[row] = 0
        return row

    def _grow(self, rows: int) -> None:
        more = rows - len(self._weight)
        self._weight = np.concatenate([self._weight, np.zeros(more)])
        self._last = np.concatenate([self._last, np.zeros((more, len(self.layers)), np.int64)])
        for name, values in self._values.items():
            self._values[name] = torch.cat([values, values.new_zeros((more, *values.shape[1:]))])

    def state(self) -> tuple[list[UserId], dict[str, Tensor]]:
        users = self.remembered
        kept = {f"value {name}": values[: len(users)] for name, values in self._values.items()}
        kept["last"] = torch.from_numpy(self._last[: len(users)])
        kept["weight"] = torch.from_numpy(self._weight[: len(users)])
        return users, kept

    def load_state(self, users: Sequence[UserId], kept: Mapping[str, Tensor]) -> None:
        self._row = {user: row for row, user in enumerate(users)}
        self._last, self._weight = kept["last"].numpy().copy(), kept["weight"].numpy().copy()
        for name, like in self._like.items():
            values = kept[f"value {name}"]
            if values.shape != (len(users), *like.shape):
                raise ValueError(f"the memory of {name!r} has a different shape")
            self._values[name] = values.to(like).clone()


class _WithRecall(Changing):
    """An aggregate around another, to which it adds what is remembered.

    Buffers are aggregated as ever: a running statistic is not something to catch up with.
    """

    def __init__(self, inner: LayerwiseAggregate, recall: Recall, t: int) -> None:
        super().__init__(inner)
        self._recall, self._t = recall, t

    def changed(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        """Remember the layers of a user's update that count, and add what is new in them."""
        index_of = self._recall.layers.index_of
        counts = {
            name: value
            for name, value in update.items()
            if name in self._recall.names and (weights is None or weights[index_of[name]])
        }
        self._recall.note(user, counts)
        return {**update, **self._new(user, counts)}

    @abstractmethod
    def _new(self, user: UserId, counts: Tensors) -> Tensors:
        """The part of a user's gradients that is added."""


class Remembering(_WithRecall):
    """Adds what differs from what is remembered, and then the mean of the latter.

    `everybody` is the weight of all users, whether they were asked or not.
    """

    def __init__(self, inner: LayerwiseAggregate, recall: Recall, t: int, everybody: float) -> None:
        super().__init__(inner, recall, t)
        self._everybody = everybody

    def _new(self, user: UserId, counts: Tensors) -> Tensors:
        found = dict(counts)
        for name, value in counts.items():
            if (known := self._recall.faded(user, name, self._t)) is not None:
                found[name] = value - self._recall.rule.beta * known
        return found

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step = self._inner.total(weights, divisor)
        for name, value in self._recall.mean(self._t, self._everybody, self._inner).items():
            remembered = self._recall.rule.beta * value
            known = step.values.get(name)
            step.values[name] = remembered if known is None else known + remembered
        return step


class StandIns(_WithRecall):
    """Averages what arrived together with what absent users sent last, as far as it is left.

    `own` are the weights of users that do not weigh 1. The method's step must be the mean over who
    arrived.
    """

    def __init__(
        self, inner: LayerwiseAggregate, recall: Recall, t: int, own: Mapping[UserId, float]
    ) -> None:
        super().__init__(inner, recall, t)
        self._own = own
        self._here: list[dict[UserId, float]] = [{} for _ in recall.layers]

    def _new(self, user: UserId, counts: Tensors) -> Tensors:
        for name in counts:
            layer = self._recall.layers.index_of[name]
            self._here[layer][user] = self._own.get(user, 1.0)
        return counts

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step = self._inner.total(weights, divisor)
        for layer, here in enumerate(self._here):
            absent = self._recall.absent(self._t, layer, here)
            if not absent.any():
                continue
            arrived, left = sum(here.values()), float(absent.sum())
            for name, value in self._inner.sum_of(self._recall.rows(layer), absent).items():
                known = step.values.get(name)
                if known is None:
                    step.values[name] = value / left
                else:
                    step.values[name] = (known * arrived + value) / (arrived + left)
        return step
