"""A user's local steps: one loop for every place where users compute.

Where it computes is a `Device`: the loop engine's, whose users stop at a depth that is known, or a
live user's, which stops at a deadline.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from salf.core.layers import Layers
from salf.core.rules import LocalRule, LocalStep, State, Tensors, checked


@dataclass(frozen=True)
class Local:
    """How one user takes its local steps."""

    rate: float = 0.0
    rule: LocalRule | None = None
    server: State = field(default_factory=dict)
    own: State = field(default_factory=dict)
    whole_steps: bool = False  # whether layers of a step that is stopped are not wanted


class Passed(NamedTuple):
    """A backward pass that stopped at a depth, and the loss it began with."""

    depth: int
    gradients: dict[str, Tensor]
    loss: float


class Device(Protocol):
    """Where a user computes: its model, its data, and how far a backward pass gets."""

    def backward(self, step: int) -> Passed:
        """The gradients of a local step (1..K) at the weights as they are."""

    def move(self, gradients: Tensors, rate: float) -> None:
        """Step to other weights."""

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that are sent."""


class LocalUpdate(NamedTuple):
    """The sum of a user's gradients, its buffers' differences, and how far it got."""

    tensors: dict[str, Tensor]
    depth: int  # of the last step begun
    steps: int
    loss: float  # the mean over its steps


def local_update(device: Device, layers: Layers, steps: int, local: Local) -> LocalUpdate:
    """A user's round: as many of its local steps as it gets through, the last one to its depth."""
    before = complete = latest = device.buffers()
    done, depth, total, losses = 1, len(layers) + 1, dict[str, Tensor](), list[float]()
    for number in range(1, steps + 1):
        passed = device.backward(number)
        if number > 1 and passed.depth > (1 if local.whole_steps else len(layers)):
            break  # nothing of this step counts: the steps before it are delivered
        done, depth, gradients = number, passed.depth, passed.gradients
        if local.rule is not None and gradients:
            gradients = changed(local, number, gradients, total)
        for name, gradient in gradients.items():
            if number < 3:  # gradients may share memory with each other
                total[name] = total[name] + gradient if name in total else gradient
            else:
                total[name].add_(gradient)
        losses.append(passed.loss)
        complete, latest = latest, device.buffers()
        if depth > 1 or number == steps:
            break
        complete = latest
        device.move(gradients, local.rate)
    # A layer that the last step did not reach has moved its buffers in the steps before it.
    differences = {
        name: moved((latest if number >= depth else complete)[name], before[name])
        for number, layer in enumerate(layers, 1)
        for name in layer.buffers
        if name in before and (number >= depth or done > 1)
    }
    return LocalUpdate({**total, **differences}, depth, done, sum(losses) / len(losses))


def changed(
    local: Local, number: int, gradients: dict[str, Tensor], total: Tensors
) -> dict[str, Tensor]:
    """The gradients of a step as the rule wants them; before the first, the total is 0."""
    assert local.rule is not None
    if number == 1:
        total = {name: gradient.new_zeros(gradient.shape) for name, gradient in gradients.items()}
    step = LocalStep(number, local.rate, total, local.server, local.own)
    return dict(checked(local.rule, gradients, local.rule.gradient(gradients, step)))


def moved(after: Tensor, before: Tensor) -> Tensor:
    """A buffer's difference: what did not move is 0, also where it is infinite (masks are)."""
    return (after - before).masked_fill_(after == before, 0)
