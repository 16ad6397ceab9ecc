"""The server's step: learning rate, momentum, and a layer nobody reached left as it is."""

from collections.abc import Mapping

import torch
from torch import Tensor

from salf.aggregate import Step
from salf.errors import SalfError
from salf.schedules import Schedule


class Server:
    """Holds the model's tensors and moves them by what a round found.

    Momentum is the server's: v <- m v + g, w <- w - eta v. When all users take part it equals
    the users' own momentum, because both are linear in the gradients.
    """

    def __init__(self, weights: Mapping[str, Tensor], schedule: Schedule, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise SalfError(f"momentum must be in [0, 1), not {momentum}.")
        self.weights = weights
        self.schedule = schedule
        self.momentum = momentum
        self.velocity: dict[str, Tensor] = {}

    @torch.no_grad()
    def apply(self, step: Step, t: int) -> None:
        """Take round t's step. What is not named in it stays bit-identical."""
        rate = self.schedule(t)
        for name, value in step.values.items():
            weight = self.weights[name]
            if not weight.requires_grad:  # a buffer: its mean difference is added as it is
                weight.add_(value)
                continue
            if self.momentum:
                value = self._momentum(name, value, step.held.get(name))
            if name in step.held:
                value = value * step.held[name]
            weight.add_(value, alpha=-rate)

    def _momentum(self, name: str, gradient: Tensor, held: Tensor | None) -> Tensor:
        velocity = self.velocity.get(name)
        if velocity is None:
            velocity = self.velocity[name] = torch.zeros_like(gradient)
        if held is None:
            return velocity.mul_(self.momentum).add_(gradient)
        moved = velocity * self.momentum + gradient
        return velocity.copy_(torch.where(held, moved, velocity))
