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

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from salf.core.aggregate import Changing, LayerwiseAggregate, PerLayer, Step, UserId
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers
from salf.core.rules import Tensors
from salf.methods import Recalled
from salf.stages.table import UserTable

TINY = np.finfo(float).tiny
LATELY = 50  # rounds after which momentum is too old


class Recall:
    """The last gradient of every layer that each user sent, when, and the user's weight.

    At most `rule.users` are remembered, so it takes as many times the memory of the model, and that
    of the updates of the open round. A user too many takes the place of the one that has been away
    for longest, whose gradients faded most.

    With a `window`, the users' momentum is remembered in place of the last gradient: the mean
    of as many updates while there are no more, then y <- (1 - 1/window) y + g/window. Of buffers,
    it is the last value that the user had. After `LATELY` rounds without another one, all is gone.
    """

    def __init__(
        self, layers: Layers, like: Mapping[str, Tensor], rule: Recalled, window: int = 1
    ) -> None:
        self.layers, self.rule, self.window = layers, rule, window
        self.lately = LATELY if window > 1 else np.inf
        known = {name: like[name].detach() for name in layers.index_of if name in like}
        self.like = {n: v for n, v in known.items() if window > 1 or like[n].requires_grad}
        self.names = [name for name in self.like if like[name].requires_grad]
        about = {"last": torch.zeros(len(layers), dtype=torch.int64)}  # the round; 0: none
        about["count"] = torch.zeros(len(layers), dtype=torch.int64)  # updates in the momentum
        about["weight"] = torch.zeros((), dtype=torch.float64)
        values = {f"value {name}": value for name, value in self.like.items()}
        self._table = UserTable({**values, **about}, rule.users)
        self.state, self.load_state = self._table.state, self._table.load_state
        self.rows_of = self._table.rows

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
        faded = 1.0 if fade is None else fade / (fade + np.maximum(age, 1))
        return np.where(age > 0, faded, 1.0)

    def left(self, t: int) -> Floats:
        """What is left in round t of what is remembered, [rows, L]; 0 of what nobody sent."""
        return np.where(self._last > 0, self._left(t - self._last), 0.0)

    def faded(self, user: UserId, name: str, t: int) -> Tensor | None:
        """y[l, u] as it counts in round t; None if there is none."""
        row = self._table.row.get(user)
        if row is None or not (last := int(self._last[row, self.layers.index_of[name]])):
            return None
        return self.values(name)[row] * float(self._left(np.array(t - last)))

    def sums(self, weights: Floats) -> dict[str, Tensor]:
        """sum_u weights[u, l] y[l, u] of the layers in which somebody has a weight."""
        used = {n: weights[:, self.layers.index_of[n]] for n in self.names}
        values = {n: (self.values(n), own) for n, own in used.items() if own.any()}
        return {n: torch.tensordot(v.new_tensor(w), v, 1) for n, (v, w) in values.items()}

    def keep(self, t: int, user: UserId, update: Tensors, weight: float = 1.0) -> None:
        """Remember a user's update of round t; an empty one takes nobody's place."""
        own = {name: value for name, value in update.items() if name in self.like}
        if not own:
            return
        row, count = self._place(t, user), self._table.columns["count"].numpy()
        self.weight[row] = weight
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

    def forget_others(self, present: Collection[UserId]) -> list[UserId]:
        """Whoever is not present has no vote any more; the result is who had one."""
        rows = self._table.row.items()
        gone = [user for user, row in rows if user not in present and self._last[row].any()]
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


class StandIns(Changing):
    """Averages what arrived together with what absent users sent last, as far as it is left.

    `own` are the weights of users that do not weigh 1. The method's step must be the mean over who
    arrived. Updates are remembered as they come. Buffers are aggregated as ever: a running
    statistic is not something to catch up with.
    """

    def __init__(
        self, inner: LayerwiseAggregate, recall: Recall, t: int, own: Mapping[UserId, float]
    ) -> None:
        super().__init__(inner, self._kept)
        self._recall, self._t, self._own = recall, t, own

    def _kept(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        """Remember the layers of a user's update that count; what to pass on."""
        index_of = self._recall.layers.index_of
        counts = {n: v for n, v in update.items() if weights is None or weights[index_of[n]]}
        self._recall.keep(self._t, user, counts, self._own.get(user, 1.0))
        return update

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step = self._inner.total(weights, divisor)
        counts = self._recall.left(self._t) * self._recall.weight[:, None]
        step.values.update(self._recall.sums(counts / counts.sum(axis=0).clip(min=TINY)))
        return step


class Remembering(StandIns):
    """Adds what differs from what is remembered, and then the mean of the latter.

    `everybody` is the weight of all users, whether they were asked or not.
    """

    def __init__(
        self,
        inner: LayerwiseAggregate,
        recall: Recall,
        t: int,
        own: Mapping[UserId, float],
        everybody: float,
    ) -> None:
        super().__init__(inner, recall, t, own)
        # Now, before it changes by this round's updates.
        self._mean = recall.sums(recall.left(t) * recall.weight[:, None] / everybody)

    def _kept(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        new, recall = dict(update), self._recall
        for name in update.keys() & set(recall.names):
            if (known := recall.faded(user, name, self._t)) is not None:
                new[name] = update[name] - recall.rule.beta * known
        super()._kept(update, weights, user)
        return new

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        step = self._inner.total(weights, divisor)
        for name, mean in self._mean.items():
            remembered, known = self._recall.rule.beta * mean, step.values.get(name)
            step.values[name] = remembered if known is None else known + remembered
        return step
