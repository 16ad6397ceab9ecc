"""Every update is looked at before it touches the model."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.layers import Layers, is_sent
from salf.live.update import Rejected, Update


class Inspection:
    """Checks updates against the model; no layer's gradient may have a norm above `max_norm`."""

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
        self._sent = [
            {name for name in layer.parameters if is_sent(weights[name], True)}
            | {name for name in layer.buffers if is_sent(weights[name], False)}
            for layer in layers
        ]

    def check(self, update: Update) -> None:
        """Raise `Rejected` if an update may not be used."""
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
        squares = dict.fromkeys(range(layers), 0.0)
        for name, tensor in update.tensors.items():
            squares[self.layers.index_of[name]] += (
                _norm(name, tensor) ** 2 * self.weights[name].requires_grad
            )
        norm, index = max((square**0.5, index) for index, square in squares.items())
        if self.max_norm is not None and norm > self.max_norm:
            raise Rejected(
                f"the norm of the gradient of layer {index + 1} ({self.layers[index].name!r}) is "
                f"{norm:.3g}, above the limit {self.max_norm:.3g}"
            )

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


def _norm(name: str, tensor: Tensor) -> float:
    """The norm, which is finite only if all values are; squares of large ones need more digits."""
    tensor = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    norm = float(torch.linalg.vector_norm(tensor))
    if not isfinite(norm):
        raise Rejected(f"{name!r} is not finite")
    return norm
