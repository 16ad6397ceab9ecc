"""The layer-wise average, fed one update at a time.

The server holds one model's worth of sums however many users there are. An update is a mapping
from names to tensors: gradients of the parameters, and differences of the buffers, of the layers
the user reached. Buffers are averaged like the layer they belong to, but never divided by 1 - p_l:
that makes up for rounds in which a gradient was missing, and would take a running statistic
further than anybody saw it, a variance even below 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.core.rules import Tensors

# Where the entries of a narrower network lie in a full tensor, and in all of them by name.
Entries = tuple[slice | Tensor, ...]
Held = Mapping[str, Entries]
PerLayer = Sequence[float] | npt.NDArray[np.float64]
UserId = int | str  # a number in the simulator, a name live
# What makes another update of a user's, given its weights.
Change = Callable[[Tensors, PerLayer | None, UserId], Tensors]


@dataclass(frozen=True)
class Step:
    """The result of a round: a gradient (or a buffer's difference) per name, averaged over users.

    Names of layers that nobody reached are absent. If only some entries of a tensor were trained,
    `held` marks them; the other entries must not change.
    """

    values: dict[str, Tensor]
    held: dict[str, Tensor] = field(default_factory=dict)


class LayerwiseAggregate:
    """Sums of the users' updates, layer by layer. `like` gives every tensor's full shape.

    With `separate`, each user's update must be added on its own, with the user's number (live, its
    name), because more is done with it than summing.
    """

    def __init__(self, layers: Layers, like: Mapping[str, Tensor], separate: bool = False) -> None:
        self.separate = separate
        self._layers = layers
        self._like = like
        self._sums: dict[str, Tensor] = {}
        # The weight of the users that hold a tensor; of each of its entries, if it came in parts.
        self._holders: dict[str, float | Tensor] = {}
        self._reached: npt.NDArray[np.int64] = np.zeros(len(layers), np.int64)

    @property
    def reached(self) -> npt.NDArray[np.int64]:
        """The number of users whose update each layer received: |U^l|."""
        return self._reached

    @property
    def sums(self) -> dict[str, Tensor]:
        """What was added, each layer times its weights."""
        return self._sums

    def add(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        held: Held | None = None,
        user: UserId | None = None,
    ) -> None:
        """Add one user's layers, each multiplied by its weight (c[l, u]; 1 if not given).

        A layer of weight 0 is left out, and does not count as reached. `held` says where the
        entries of a narrower network lie in the full tensors.
        """
        self.add_sum(update, weights, held=held)

    def add_sum(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        users: Sequence[int] | npt.NDArray[np.int64] | None = None,
        total: PerLayer | None = None,
        held: Held | None = None,
    ) -> None:
        """Add tensors that are the sum over several users already, where none is `separate`.

        `users` counts them per layer, and `total` is the sum of their weights if these differ.
        """
        counts: dict[int, int] = {}
        for name, value in update.items():
            index = self._index(name)
            weight = 1.0 if weights is None else float(weights[index])
            if not weight:
                continue
            count = counts[index] = 1 if users is None else int(users[index])
            of_all = weight * count if total is None else float(total[index])
            if held is not None:
                self._add_part(name, value, weight, of_all, held[name])
                continue
            known = self._sums.get(name)
            if is_counter(value):  # a counter has no mean: the furthest user's count stands
                self._sums[name] = value.clone() if known is None else torch.maximum(known, value)
            elif known is None:
                self._sums[name] = value * weight
            else:
                known.add_(value, alpha=weight)
            self._holders[name] = self._holders.get(name, 0.0) + of_all
        for index, count in counts.items():
            self._reached[index] += count

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        """The sums, each layer's divided by its divisor (1 if not given): the method's step.

        `weights` are what was added up: sum_u c[l, u], or sum_u share[l, u] with a divisor. Only
        where 1 - p_l divides is the quotient more than 1, and buffers do without that.
        """
        step = Step({}, self._held())
        for name, value in self._sums.items():
            index = self._layers.index_of[name]
            if not is_counter(value):
                by = 1.0 if divisor is None else float(divisor[index])
                if divisor is not None:
                    value = value / by
                if not self._like[name].requires_grad:  # a buffer
                    value = value / max(1.0, float(weights[index]) / by)
            step.values[name] = value
        return step

    def average(self) -> Step:
        """The weighted mean of each entry over the users who hold it (HeteroFL)."""
        step = Step({}, self._held())
        for name, value in self._sums.items():
            holders = self._holders[name]
            if isinstance(holders, Tensor):
                holders = torch.where(holders > 0, holders, 1)
            step.values[name] = value if is_counter(value) else value / holders
        return step

    def _held(self) -> dict[str, Tensor]:
        parts = {name: each for name, each in self._holders.items() if isinstance(each, Tensor)}
        # Whether any is missing is not asked of an accelerator: the answer would be a copy.
        whole = [n for n, each in parts.items() if each.device.type == "cpu" and each.all()]
        return {name: holders > 0 for name, holders in parts.items() if name not in whole}

    def _index(self, name: str) -> int:
        if name not in self._layers.index_of:
            raise SalfError(f"the update names {name!r}, which is in no layer.")
        return self._layers.index_of[name]

    def _add_part(self, name: str, value: Tensor, weight: float, total: float, at: Entries) -> None:
        full = self._like[name]
        holders = self._holders.get(name, 0.0)
        if not isinstance(holders, Tensor):
            holders = self._holders[name] = torch.full_like(full, holders, requires_grad=False)
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(full, requires_grad=False)
        # Written back, because entries chosen by their numbers are a copy.
        self._sums[name][at] = self._sums[name][at].add_(value, alpha=weight)
        holders[at] += total


class Changing(LayerwiseAggregate):
    """An aggregate that changes every user's own update before another one gets it."""

    def __init__(self, inner: LayerwiseAggregate, changed: Change) -> None:
        self._inner, self._changed = inner, changed
        self.separate = True

    @property
    def reached(self) -> npt.NDArray[np.int64]:
        return self._inner.reached

    def add(
        self,
        update: Tensors,
        weights: PerLayer | None = None,
        held: Held | None = None,
        user: UserId | None = None,
    ) -> None:
        assert user is not None
        self._inner.add(self._changed(update, weights, user), weights, held=held, user=user)

    def end(self) -> None:
        """Every user's update has come; what was held back is added now."""

    def total(self, weights: PerLayer, divisor: PerLayer | None = None) -> Step:
        self.end()
        return self._inner.total(weights, divisor)

    def average(self) -> Step:
        self.end()
        return self._inner.average()


def is_counter(value: Tensor) -> bool:
    """Whether a buffer counts something, such as batches: then it has no mean."""
    return not (value.dtype.is_floating_point or value.dtype.is_complex)
