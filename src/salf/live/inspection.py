"""Every update is looked at before it touches the model."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median, median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.layers import Layers, is_sent
from salf.live.update import Rejected, Update

WINDOW = 200  # users whose norms of a layer are remembered
LATELY = 9  # norms of a user that are remembered
ENOUGH = 3  # users whose norms make a bound that none of them can raise alone
FACTOR = 50.0  # how far from the usual an honest update may be


class TooLarge(Rejected):
    """An update that is larger than others were. The bound is learned, and may come to allow it."""


class Part(NamedTuple):
    """What has a norm of its own: the gradients of a layer, or its buffers' differences."""

    layer: int  # from 0
    gradients: bool


class Usual:
    """How large one part of honest updates is.

    The bound is `FACTOR` times the largest median over users that there was. Every user has one
    vote, the median of its last norms, however often it sends this part; so no user raises the
    bound alone, also where few reach a layer. It is learned from what is refused, too, so that
    honest users whose gradients grow are not locked out. It never falls, because late in training
    most gradients are small and the few that are not are those that matter. It is learned a whole
    round at a time: else those who answer first would have it to themselves. Fewer than `ENOUGH`
    users have none.
    """

    def __init__(self) -> None:
        self.norms: dict[str, deque[float]] = {}  # of users, those heard last at the end
        self.largest = 0.0  # of the medians

    def learn(self, norms: Mapping[str, float]) -> None:
        """The updates of a round that are good otherwise have these norms, by user."""
        for user, norm in norms.items():
            self.norms[user] = self.norms.pop(user, deque(maxlen=LATELY))
            self.norms[user].append(norm)
        while len(self.norms) > WINDOW:
            del self.norms[next(iter(self.norms))]
        if len(self.norms) >= ENOUGH:
            usual = median_low([median(each) for each in self.norms.values()])
            self.largest = max(self.largest, usual)

    def bound(self) -> float | None:
        """None while too little is known."""
        return FACTOR * self.largest if len(self.norms) >= ENOUGH else None


class Inspection:
    """Checks updates against the model they are for, and remembers how large good ones are.

    With `max_norm`, no layer's gradient may have a larger norm; without, the bound is learned.
    That of buffers always is. What is learned in a round counts from the next one on; and in the
    round itself for updates with a part of which nothing was known before. They have to wait until
    the round closes: `check` says so, and `check_norms` looks at them again.
    """

    def __init__(
        self,
        layers: Layers,
        weights: Mapping[str, Tensor],
        max_norm: float | None = None,
        local_steps: int = 1,
    ) -> None:
        if max_norm is not None and not max_norm > 0:
            raise SalfError(f"the largest allowed norm must be positive, not {max_norm}.")
        self.layers, self.weights = layers, weights
        self.max_norm = max_norm
        self.local_steps = local_steps  # the most that users do
        self._seen: dict[Part, dict[str, float]] = {}  # norms of this round, by user
        parts = (Part(i, gradients) for i in range(len(layers)) for gradients in (True, False))
        self._usual = {part: Usual() for part in parts}
        self._sent = [
            {name for name in layer.parameters if is_sent(weights[name], True)}
            | {name for name in layer.buffers if is_sent(weights[name], False)}
            for layer in layers
        ]

    def check(self, user: str, update: Update) -> bool:
        """Whether all parts of a user's update have a bound; `Rejected` if it may not be used."""
        layers, (begun, planned) = len(self.layers), (update.steps, update.planned)
        if not 1 <= update.depth <= layers + 1:
            raise Rejected(f"its depth {update.depth} is outside 1..{layers + 1}")
        if not 1 <= begun <= planned <= self.local_steps:
            raise Rejected(
                f"it has {begun} of {planned} local steps, outside 1..{self.local_steps}"
            )
        self._check_names(update)
        for name, tensor in update.tensors.items():
            like = self.weights[name]
            if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
                raise Rejected(f"{name!r} is not a dense tensor")
            for what, came, wanted in (
                ("shape", tuple(tensor.shape), tuple(like.shape)),
                ("type", tensor.dtype, like.dtype),
            ):
                if came != wanted:
                    raise Rejected(f"{name!r} has {what} {came}, expected {wanted}")
            if name.endswith("running_var") and bool((tensor + like < 0).any()):
                raise Rejected(f"{name!r} makes a variance negative")
        norms = self._norms(update)
        for part, norm in norms.items():
            self._seen.setdefault(part, {})[user] = norm
        return self._are_bounded(norms)

    def check_norms(self, update: Update) -> None:
        """Return if no part of the update is larger than its bound, as far as that is known."""
        self._are_bounded(self._norms(update))

    def learn(self) -> None:
        """A round is over."""
        for part, norms in self._seen.items():
            self._usual[part].learn(norms)
        self._seen = {}

    def bound(self, part: Part) -> float | None:
        """The largest norm this part of an update may have; None while nothing is known.

        Buffers that never moved must not. Gradients that were 0 so far may begin to be others
        (behind weights that begin at 0), and then be as large as those of another layer; so may
        those of a layer that too few users reached to tell.
        """
        if self.max_norm is not None and part.gradients:
            return self.max_norm
        own = self._usual[part].bound()
        if own or not part.gradients:
            return own
        return max(each.bound() or 0.0 for of, each in self._usual.items() if of.gradients) or None

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """What was learned, part by part: the largest median, and the last norms of users."""
        return [
            [usual.largest, {user: list(norms) for user, norms in usual.norms.items()}]
            for usual in self._usual.values()
        ], {}

    def load_state(self, plain: Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on with what another server learned."""
        for usual, (largest, norms) in zip(self._usual.values(), plain, strict=True):
            usual.largest = float(largest)
            usual.norms = {user: deque(map(float, own), LATELY) for user, own in norms.items()}

    def _check_names(self, update: Update) -> None:
        """Exactly the layers d..L, or all after a complete local step: known and whole."""
        lowest = update.depth if update.steps == 1 else 1
        due = set().union(*self._sent[lowest - 1 :])
        if extra := sorted(update.tensors.keys() - due):
            reached = extra[0] in self.layers.index_of
            why = "which its depth does not reach" if reached else "which is not in the model"
            raise Rejected(f"it has {extra[0][:200]!r}, {why}")
        if missing := sorted(due - update.tensors.keys()):
            raise Rejected(f"{missing[0]!r} is missing, but its depth is {update.depth}")

    def _norms(self, update: Update) -> dict[Part, float]:
        squares: dict[Part, float] = {}
        for name, tensor in update.tensors.items():
            part = Part(self.layers.index_of[name], self.weights[name].requires_grad)
            squares[part] = squares.get(part, 0.0) + _norm(name, tensor) ** 2
        return {part: square**0.5 for part, square in squares.items()}

    def _are_bounded(self, norms: Mapping[Part, float]) -> bool:
        """Whether all norms have a bound; `Rejected` if one is above its own."""
        bounds = {part: self.bound(part) for part in norms}
        for part, bound in bounds.items():
            if bound is not None and norms[part] > bound:
                learned = not part.gradients or self.max_norm is None
                raise (TooLarge if learned else Rejected)(
                    f"the norm of the {'gradient' if part.gradients else 'buffers'} of layer "
                    f"{part.layer + 1} ({self.layers[part.layer].name!r}) is {norms[part]:.3g}, "
                    f"above the limit {bound:.3g}"
                )
        return None not in bounds.values()


def _norm(name: str, tensor: Tensor) -> float:
    """The norm. It is finite only if all values are, and faster than a look at each of them."""
    if not (tensor.is_floating_point() or tensor.is_complex()):  # a counter
        tensor = tensor.double()
    norm = float(torch.linalg.vector_norm(tensor))
    if not isfinite(norm):  # squares of large values overflow in single precision
        double = torch.complex128 if tensor.is_complex() else torch.float64
        norm = float(torch.linalg.vector_norm(tensor, dtype=double).real)
    if not isfinite(norm):
        raise Rejected(f"{name!r} is not finite")
    return norm
