"""The server's memory of each user's last update, and steps that use it.

With a share a[l, u], a scale s[l] and a recall beta, the step of layer l is

    s_l sum_{u arrived} a[l, u] (g[l, u] - beta y[l, u])  +  beta mean_u y[l, u]

where y[l, u] is the last gradient of layer l that user u sent (0 before the first), times what is
left of it after so many rounds. The mean is over all users (`Remembering`). Or what is remembered
stands in for those who are absent, as far as it has not faded (`StandIns`): with r[l, u] = 1 for
who arrived, and what is left of it for who did not,

    sum_u r[l, u] y[l, u] / sum_u r[l, u],    y being new for those who arrived.

A robust rule remembers means of users' last updates in the same table (stages/robust.py).
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from salf.core.aggregate import (
    Changing,
    LayerwiseAggregate,
    PerLayer,
    Step,
    UserId,
    is_counter,
)
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.methods import Recalled
from salf.stages.table import UserTable


class Recall:
    """The last gradient of every layer that each user sent, when, and the user's weight.

    At most `rule.users` are remembered, so it takes as many times the memory of the model, and that
    of the updates of the open round. A user too many takes the place of the one that has been away
    for longest, whose gradients faded most.

    With a `window`, the users' momentum is remembered in place of the last gradient: the mean
    of as many updates while there are no more, then y <- (1 - 1/window) y + g/window. Of buffers,
    it is the last value that the user had. What is older than `lately` rounds is forgotten.
    """

    def __init__(
        self,
        layers: Layers,
        like: Mapping[str, Tensor],
        rule: Recalled,
        window: int = 1,
        lately: float = np.inf,
    ) -> None:
        self.layers, self.rule, self.window, self.lately = layers, rule, window, lately
        self.like = {
            name: like[name].detach()
            for name in layers.index_of
            if name in like
            and (like[name].requires_grad or (window > 1 and not is_counter(like[name])))
        }
        self.names = [name for name in self.like if like[name].requires_grad]
        about = {"last": torch.zeros(len(layers), dtype=torch.int64)}  # the round; 0: none
        about["count"] = torch.zeros(len(layers), dtype=torch.int64)  # updates in the momentum
        about["weight"] = torch.zeros((), dtype=torch.float64)
        values = {f"value {name}": value for name, value in self.like.items()}
        self._table = UserTable({**values, **about}, rule.users)
        self.state, self.load_state = self._table.state, self._table.load_state
        self._new: dict[UserId, Tensors] = {}  # of the round that is open

    @property
    def remembered(self) -> list[UserId]:
        """The users that are remembered, row by row."""
        return self._table.users

    @property
    def bytes(self) -> int:
        return sum(self.values(name).nbytes for name in self.like)

    def values(self, name: str) -> Tensor:
        """What is remembered of a tensor, a row for each user and spare ones."""
        return self._table.columns[f"value {name}"]

    @property
    def _last(self) -> Ints:
        return self._table.columns["last"].numpy()

    @property
    def weight(self) -> Floats:
        """The weight of the user of each row."""
        return self._table.columns["weight"].numpy()

    def _left(self, age: Ints) -> Floats:
        fade = self.rule.fade
        return np.ones(age.shape) if fade is None else np.asarray(fade / (fade + age))

    def left(self, t: int) -> Floats:
        """What is left in round t of what is remembered, [rows, L]; 0 of what nobody sent."""
        return np.where(self._last > 0, self._left(t - self._last), 0.0)

    def faded(self, user: UserId, name: str, t: int) -> Tensor | None:
        """y[l, u] as it counts in round t; None if there is none."""
        row = self._table.row.get(user)
        if row is None or not (last := int(self._last[row, self.layers.index_of[name]])):
            return None
        return self.values(name)[row] * float(self._left(np.array(t - last)))

    def absent(self, t: int, layer: int, here: Iterable[UserId]) -> Floats:
        """The weights in round t of the rows of absent users, in a layer (from 0)."""
        counts = self.left(t)[:, layer] * self.weight
        counts[[self._table.row[user] for user in here if user in self._table.row]] = 0.0
        return counts

    def sum_of(self, layer: int, weights: Floats, sums: LayerwiseAggregate) -> dict[str, Tensor]:
        """sum_u weights_u y[l, u] of a layer (from 0), as `sums` says what a sum over users is."""
        names = [name for name in self.layers[layer].parameters if name in self.names]
        return sums.sum_of({n: self.values(n) for n in names}, weights)

    def note(self, user: UserId, update: Tensors) -> None:
        """A user's update of the round that is open; an empty one takes nobody's place."""
        if update:
            self._new[user] = update

    def learn(self, t: int, weights: Mapping[UserId, float]) -> None:
        """Round t is over: its updates are the last ones of their users, who weigh 1 or this."""
        for user, update in self._new.items():
            self.keep(t, user, update, weights.get(user, 1.0))
        self._new = {}

    def keep(self, t: int, user: UserId, update: Tensors, weight: float = 1.0) -> None:
        """Remember a user's update of round t."""
        row, count = self._place(t, user), self._table.columns["count"].numpy()
        self.weight[row] = weight
        own = {name: value for name, value in update.items() if name in self.like}
        for index in {self.layers.index_of[name] for name in own}:
            count[row, index] = self._steps(t, row, index)
            self._last[row, index] = t
        for name, value in own.items():
            steps = int(count[row, self.layers.index_of[name]]) if name in self.names else 1
            self.values(name)[row].lerp_(value, 1 / steps)

    def _steps(self, t: int, row: int, layer: int) -> int:
        """How many updates a user's momentum is the mean of with another one in round t."""
        count = int(self._table.columns["count"][row, layer]) * self._is_new(t, row, layer)
        return min(count + 1, self.window)

    def sent_for(self, t: int, user: UserId, name: str, wanted: Tensor) -> Tensor:
        """What this user has to send in round t for its momentum to be the wanted one."""
        if (row := self._table.row.get(user)) is None:
            return wanted
        return self.values(name)[row].lerp(wanted, self._steps(t, row, self.layers.index_of[name]))

    def voters(self, t: int, layer: int) -> list[UserId]:
        """The users who lately sent a layer (from 0), in an order that a replay has, too."""
        here = [user for user, row in self._table.row.items() if self._is_new(t, row, layer)]
        return sorted(here, key=lambda user: (len(str(user)), user))

    def rows_of(self, users: Iterable[UserId]) -> Ints:
        """Their rows in the table."""
        return self._table.rows(users)

    def forget_others(self, present: Collection[UserId]) -> list[UserId]:
        """Whoever is not present has no vote any more; the result is who had one."""
        gone = [
            u for u, row in self._table.row.items() if u not in present and self._last[row].any()
        ]
        self._last[self.rows_of(gone)] = 0
        return gone

    def _is_new(self, t: int, row: int, layer: int) -> bool:
        """Whether the user of a row sent a layer lately."""
        last = int(self._last[row, layer])
        return last > 0 and t - last < self.lately

    def _place(self, t: int, user: UserId) -> int:
        rows = self._table.row
        if user not in rows and rows:
            # The row decides between equally old ones: a server started again chooses alike.
            last = self._last[: len(rows)].max(axis=1)
            oldest = int(last.argmin())
            if len(rows) == self.rule.users or t - last[oldest] >= self.lately:
                del rows[self.remembered[oldest]]
                rows[user] = oldest
                self._last[oldest] = 0
                self._table.columns["count"][oldest] = 0
        return int(self._table.rows([user], add=True)[0])


class Remembering(Changing):
    """Adds what differs from what is remembered, and then the mean of the latter.

    `everybody` is the weight of all users, whether they were asked or not. Buffers are aggregated
    as ever: a running statistic is not something to catch up with.
    """

    def __init__(self, inner: LayerwiseAggregate, recall: Recall, t: int, everybody: float) -> None:
        super().__init__(inner, self._remembered)
        self._recall, self._t, self._everybody = recall, t, everybody

    def _remembered(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        """Remember the layers of a user's update that count, and add what is new in them."""
        index_of, names = self._recall.layers.index_of, self._recall.names
        counts = {
            name: value
            for name, value in update.items()
            if name in names and (weights is None or weights[index_of[name]])
        }
        self._recall.note(user, counts)
        return {**update, **self._new(user, counts)}

    def _new(self, user: UserId, counts: Tensors) -> Tensors:
        """The part of a user's gradients that is added."""
        new = dict(counts)
        for name, value in counts.items():
            if (known := self._recall.faded(user, name, self._t)) is not None:
                new[name] = value - self._recall.rule.beta * known
        return new

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step, recall = self._inner.total(weights, divisor), self._recall
        shares = recall.left(self._t) * recall.weight[:, None] / self._everybody
        for layer in np.flatnonzero(shares.any(axis=0)).tolist():
            mean = recall.sum_of(layer, shares[:, layer], self._inner)
            for name, value in mean.items():
                remembered = recall.rule.beta * value
                known = step.values.get(name)
                step.values[name] = remembered if known is None else known + remembered
        return step


class StandIns(Remembering):
    """Averages what arrived together with what absent users sent last, as far as it is left.

    `own` are the weights of users that do not weigh 1. The method's step must be the mean over who
    arrived.
    """

    def __init__(
        self, inner: LayerwiseAggregate, recall: Recall, t: int, own: Mapping[UserId, float]
    ) -> None:
        super().__init__(inner, recall, t, everybody=0.0)
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
            for name, value in self._recall.sum_of(layer, absent, self._inner).items():
                known = step.values.get(name)
                if known is None:
                    step.values[name] = value / left
                else:
                    step.values[name] = (known * arrived + value) / (arrived + left)
        return step
