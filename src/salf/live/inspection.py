"""Every update is looked at before it touches the model."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

import torch
from torch import Tensor

from salf.layers import Layers
from salf.live.update import Rejected, Update, is_sent

WINDOW = 200  # norms of a layer that are remembered
ENOUGH = 10  # norms of a layer before a bound is learned from them
FACTOR = 20.0  # how far from the usual an honest update may be


class Inspection:
    """Checks updates against the model they are for, and remembers how large good ones are.

    With `most_norm`, no layer's gradient may have a larger norm; without, the bound is learned:
    `FACTOR` times the median of what the layer's accepted gradients had lately.
    """

    def __init__(
        self, layers: Layers, weights: Mapping[str, Tensor], most_norm: float | None = None
    ) -> None:
        self.layers = layers
        self.weights = weights
        self.most_norm = most_norm
        self._usual: list[deque[float]] = [deque(maxlen=WINDOW) for _ in layers]
        self._parts = [
            tuple(
                name
                for names, is_parameter in ((layer.parameters, True), (layer.buffers, False))
                for name in names
                if is_sent(weights[name], is_parameter)
            )
            for layer in layers
        ]

    def check(self, update: Update, round: int) -> None:
        """Return if the update may be used in this round, else raise `Rejected`."""
        if update.round != round:
            raise Rejected(f"for round {update.round}, and this is round {round}")
        if not 1 <= update.depth <= len(self.layers) + 1:
            raise Rejected(f"of depth {update.depth}, outside 1..{len(self.layers) + 1}")
        self._check_names(update)
        norms = self._norms(update)
        for index, norm in norms.items():
            self._check_norm(index, norm)
        for index, norm in norms.items():  # only when all of it is good
            self._usual[index].append(norm)

    def bound(self, index: int) -> float | None:
        """The largest norm a gradient of this layer may have; None while nothing is known."""
        if self.most_norm is not None:
            return self.most_norm
        usual = self._usual[index]
        return FACTOR * median(usual) if len(usual) >= ENOUGH and median(usual) > 0 else None

    def usual(self) -> list[list[float]]:
        """The norms of accepted gradients that are remembered, by layer."""
        return [list(norms) for norms in self._usual]

    def remember(self, usual: Sequence[Sequence[float]]) -> None:
        """Go on with the norms another server remembered."""
        for mine, norms in zip(self._usual, usual, strict=True):
            mine.extend(norms)

    def _check_names(self, update: Update) -> None:
        """Exactly the layers d..L: known, whole, and contiguous down from the last."""
        due = {name for part in self._parts[update.depth - 1 :] for name in part}
        if extra := sorted(update.tensors.keys() - due):
            known = (
                "which its depth does not reach"
                if extra[0] in self.layers.index_of
                else ("which the model does not have")
            )
            raise Rejected(f"with {extra[0][:200]!r}, {known}")
        if missing := sorted(due - update.tensors.keys()):
            raise Rejected(f"without {missing[0]!r}, though of depth {update.depth}")

    def _check_tensor(self, name: str, tensor: Tensor) -> None:
        like = self.weights[name]
        if tensor.shape != like.shape:
            raise Rejected(f"with {name!r} of shape {tuple(tensor.shape)}, not {tuple(like.shape)}")
        if tensor.dtype != like.dtype:
            raise Rejected(f"with {name!r} of type {tensor.dtype}, not {like.dtype}")

    def _norms(self, update: Update) -> dict[int, float]:
        """Of the gradients of every layer it has."""
        squares: dict[int, float] = {}
        for name, tensor in update.tensors.items():
            self._check_tensor(name, tensor)
            norm = _norm(name, tensor)
            if self.weights[name].requires_grad:
                index = self.layers.index_of[name]
                squares[index] = squares.get(index, 0.0) + norm**2
        return {index: square**0.5 for index, square in squares.items()}

    def _check_norm(self, index: int, norm: float) -> None:
        bound = self.bound(index)
        if bound is not None and norm > bound:
            raise Rejected(
                f"with a gradient of norm {norm:.3g} in layer {index + 1} "
                f"({self.layers[index].name}), where at most {bound:.3g} is allowed"
            )


def _norm(name: str, tensor: Tensor) -> float:
    """The norm. It is finite only if all values are, and faster than a look at each of them."""
    if not tensor.is_floating_point():
        return 0.0
    norm = float(torch.linalg.vector_norm(tensor))
    if not isfinite(norm):  # squares of large values overflow in single precision
        norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    if not isfinite(norm):
        raise Rejected(f"with {name!r} not finite")
    return norm
