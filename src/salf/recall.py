"""What the server remembers of each user's last update, and steps that use it.

With a share a[l, u], a scale s[l] and a recall beta, the step of layer l is

    s_l sum_{u arrived} a[l, u] (g[l, u] - beta y[l, u])  +  beta mean_u y[l, u]

where y[l, u] is the last gradient of layer l that user u sent (0 before the first), times what is
left of it after so many rounds. The mean is over all users.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from salf.aggregate import Held, LayerwiseAggregate, PerLayer, Step, Update, User
from salf.arrivals import Floats, Ints
from salf.layers import Layers
from salf.methods import Recalled


class Recall:
    """A table with a row for each user remembered: its last gradient of every layer, and when.

    It has at most `rule.users` rows, so it takes as many times the memory of the model. A user too
    many takes the place of the one that has been away for longest, whose gradients faded most.
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
        self._row: dict[User, int] = {}
        self._values = {
            name: tensor.new_empty((0, *tensor.shape)) for name, tensor in self._like.items()
        }
        self._last: Ints = np.zeros((0, len(layers)), np.int64)  # the round of each layer; 0: none
        self._weight: Floats = np.zeros(0)
        self._new: dict[User, Update] = {}  # of the round that is open

    @property
    def users(self) -> int:
        """How many users are remembered."""
        return len(self._row)

    @property
    def bytes(self) -> int:
        """The memory that the table takes now."""
        return sum(values.nbytes for values in self._values.values())

    def faded(self, user: User, name: str, t: int) -> Tensor | None:
        """y[l, u] as it counts in round t; None if there is none."""
        row = self._row.get(user)
        if row is None or not (last := int(self._last[row, self.layers.index_of[name]])):
            return None
        return self._values[name][row] * float(self._left(np.array(t - last)))

    def left(self, t: int, users: Sequence[User]) -> Floats:
        """What is left in round t of what each user sent last, [users, L]; 0 if nothing was."""
        rows = np.array([self._row.get(user, -1) for user in users], np.int64)
        last = np.concatenate(
            [self._last, np.zeros_like(self._last[:1], shape=(1, len(self.layers)))]
        )
        return np.where(last[rows] > 0, self._left(t - last[rows]), 0.0)

    def weights(self, t: int, total: float) -> dict[User, float]:
        """What each user remembered counts in round t, on average over the layers."""
        users = list(self._row)
        own = self._weight[[self._row[user] for user in users]] if users else np.zeros(0)
        counts = self.left(t, users).mean(axis=1) * own * self.rule.beta / total
        return dict(zip(users, counts.tolist(), strict=True))

    def mean(self, t: int, total: float, sums: LayerwiseAggregate) -> dict[str, Tensor]:
        """sum_u weight_u y[l, u] / total, of the layers of which something is remembered.

        `sums` says what a sum over users is: where some may be bad, another than the plain one.
        """
        found: dict[str, Tensor] = {}
        left = np.where(self._last > 0, self._left(t - self._last), 0.0)
        weights = left * self._weight[:, None] / total
        for index, layer in enumerate(self.layers):
            rows = {name: self._values[name] for name in layer.parameters if name in self._values}
            if weights[:, index].any():
                found |= sums.sum_of(rows, weights[:, index])
        return found

    def _left(self, age: Ints) -> Floats:
        """What an update counts so many rounds later."""
        fade = self.rule.fade
        return np.ones(age.shape) if fade is None else np.asarray(fade / (fade + age))

    def note(self, user: User, update: Update) -> None:
        """A user's update of the round that is open."""
        self._new[user] = update

    def learn(self, t: int, weights: Mapping[User, float]) -> None:
        """Round t is over: its updates are the last ones of their users, who weigh 1 or this."""
        for user, update in self._new.items():
            row = self._place(user)
            self._weight[row] = weights.get(user, 1.0)
            for name, value in update.items():
                self._values[name][row] = value
                self._last[row, self.layers.index_of[name]] = t
        self._new = {}

    def _place(self, user: User) -> int:
        """The row of a user, new or not."""
        if user in self._row:
            return self._row[user]
        if len(self._row) < self.rule.users:
            self._row[user] = row = len(self._row)
            if row >= len(self._weight):
                self._grow(min(self.rule.users, max(8, 2 * row)))
            return row
        oldest = min(self._row, key=lambda one: int(self._last[self._row[one]].max()))
        self._row[user] = row = self._row.pop(oldest)
        self._last[row] = 0
        return row

    def _grow(self, rows: int) -> None:
        more = rows - len(self._weight)
        self._weight = np.concatenate([self._weight, np.zeros(more)])
        self._last = np.concatenate([self._last, np.zeros((more, len(self.layers)), np.int64)])
        for name, values in self._values.items():
            self._values[name] = torch.cat([values, values.new_zeros((more, *values.shape[1:]))])

    def state(self) -> tuple[list[User], dict[str, Tensor]]:
        """The users remembered, and tensors with a row for each."""
        users = sorted(self._row, key=self._row.__getitem__)
        kept = {f"value {name}": values[: len(users)] for name, values in self._values.items()}
        kept["last"] = torch.from_numpy(self._last[: len(users)])
        kept["weight"] = torch.from_numpy(self._weight[: len(users)])
        return users, kept

    def load_state(self, users: Sequence[User], kept: Mapping[str, Tensor]) -> None:
        """Continue with what another server remembered."""
        self._row = {user: row for row, user in enumerate(users)}
        self._last, self._weight = kept["last"].numpy().copy(), kept["weight"].numpy().copy()
        for name, like in self._like.items():
            values = kept[f"value {name}"]
            if values.shape != (len(users), *like.shape):
                raise ValueError(f"what is remembered of {name!r} has another shape")
            self._values[name] = values.to(like).clone()


class Remembering(LayerwiseAggregate):
    """An aggregate of differences to what is remembered, which adds the mean of the latter.

    `total_weight` is that of all users, whether they were asked or not. Buffers are aggregated as
    ever: a running statistic is not something to catch up with.
    """

    def __init__(
        self, inner: LayerwiseAggregate, recall: Recall, t: int, total_weight: float
    ) -> None:
        self._inner, self._recall, self._t, self._users = inner, recall, t, total_weight
        self.separate = True

    @property
    def reached(self) -> Ints:  # type: ignore[override]
        """How many users' updates each layer got."""
        return self._inner.reached

    def add(
        self,
        update: Update,
        weights: PerLayer | None = None,
        users: Sequence[int] | Ints | None = None,
        total: PerLayer | None = None,
        held: Held | None = None,
        user: User | None = None,
    ) -> None:
        """Add what is new in one user's update."""
        assert user is not None
        assert held is None
        recall, index_of = self._recall, self._recall.layers.index_of
        counts = {
            name: value
            for name, value in update.items()
            if name in recall._values and (weights is None or weights[index_of[name]])
        }
        recall.note(user, counts)
        new = dict(update)
        for name, value in counts.items():
            if (known := recall.faded(user, name, self._t)) is not None:
                new[name] = value - recall.rule.beta * known
        self._inner.add(new, weights, user=user)

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        """The step of what is new, and of what is remembered."""
        step = self._inner.total(weights, divisor)
        for name, value in self._recall.mean(self._t, self._users, self._inner).items():
            remembered = self._recall.rule.beta * value
            known = step.values.get(name)
            step.values[name] = remembered if known is None else known + remembered
        return step
