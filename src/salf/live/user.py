"""The user's side of a round: its model, its own data, its clock. Only layers leave it."""

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from salf.backprop import moved
from salf.deadline import Backpropagation
from salf.errors import SalfError
from salf.layers import Layers, is_sent
from salf.live.update import Update


class User:
    """One user, round after round: takes the model, answers with the layers it reached in time.

    `loss(round)` is the loss on the user's mini-batch of that round, from the model it was made
    with. What it learns about its own speed stays here.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: Layers,
        loss: Callable[[int], Tensor],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.model = model
        self.backpropagation = Backpropagation(model, layers, now)
        self._loss = loss
        self._now = now

    def train(self, round: int, deadline: float | None, weights: Mapping[str, Tensor]) -> Update:
        """One round. All of it counts against the deadline: taking over the model, too."""
        start = self._now()
        take_over(self.model, weights)
        before = self._buffers()
        left = math.inf if deadline is None else deadline - (self._now() - start)
        partial = self.backpropagation.within(left, lambda: self._loss(round))
        reached = self.backpropagation.layers.reached(partial.depth)
        buffers = dict(self.model.named_buffers())
        differences = {
            name: moved(buffers[name], before[name])
            for layer in reached
            for name in layer.buffers
            if name in before
        }
        return Update(
            self.name,
            round,
            partial.depth,
            {**partial.gradients, **differences},
            0.0 if partial.loss is None else float(partial.loss),
            self._now() - start,
        )

    def _buffers(self) -> dict[str, Tensor]:
        """Copies of those that are sent, from which the round's difference is taken."""
        return {
            name: buffer.clone()
            for name, buffer in self.model.named_buffers()
            if is_sent(buffer, is_parameter=False)
        }


@torch.no_grad()
def take_over(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Make the model's parameters and buffers those of `weights`."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())[0]
        side = "this model" if odd in own else "the server's"
        raise SalfError(f"the server trains another model: {odd!r} is in {side} only.")
    for name, tensor in weights.items():
        if own[name].shape != tensor.shape:
            raise SalfError(
                f"the server trains another model: there, {name!r} is of shape "
                f"{tuple(tensor.shape)}, and here of {tuple(own[name].shape)}."
            )
        own[name].copy_(tensor)
