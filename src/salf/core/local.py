"""A user's local steps: one loop for every place where users compute, and rules that change it.

Where it computes is a `Device`: the loop engine's, whose users stop at a depth that is known, or a
live user's, which stops at a deadline. A `LocalRule` changes the gradient of every step, as
FedProx, SCAFFOLD and FedDyn do.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # methods import this module, and the command line all methods: without torch
    from torch import Tensor

    from salf.core.layers import Layers

Tensors = Mapping[str, "Tensor"]
State = Mapping[str, "Tensor"]  # what a method keeps, by name; a number is a tensor of no dimension


@dataclass(frozen=True)
class LocalStep:
    """A local step of one user, as a rule sees it. In step 1 the user has the server's weights."""

    number: int  # from 1
    rate: float  # of local steps
    total: Tensors  # the sum of the changed gradients so far: w - w_t is -rate times it
    server: State  # what the server sent beside the model
    own: State  # what is kept of the user


@dataclass(frozen=True)
class Done:
    """A user's round as it counts: what its own state and the server's learn from."""

    total: Tensors  # the sum of its changed gradients, by parameter, of the layers that count
    steps: Mapping[str, int]  # of how many local steps each of these is the sum
    rate: float  # of these steps
    server: State  # what the server sent
    own: State  # what was kept of the user before


class LocalRule(ABC):
    """Changes the gradients that users step along. It sees one user, and keeps nothing itself."""

    @abstractmethod
    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """The gradients to step along in place of these, of the layers the user reached."""

    def of_many(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """`gradient` for stacked users: `gradients`, `total` and `own` are [users, ...]."""

        import torch

        def one(gradients: Tensors, total: Tensors, own: State) -> Tensors:
            return self.gradient(gradients, replace(step, total=total, own=own))

        changed: Tensors = torch.vmap(one)(dict(gradients), dict(step.total), dict(step.own))
        return changed


@dataclass(frozen=True)
class Proximal(LocalRule):
    """The gradient of F(w) + mu/2 ||w - w_t||^2 in place of that of F."""

    mu: float

    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        if step.number == 1:
            return gradients
        pull = self.mu * step.rate
        return {name: g - pull * step.total[name] for name, g in gradients.items()}

    def of_many(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """In place: a stack is large."""
        if step.number > 1:
            for name, gradient in gradients.items():
                gradient.sub_(step.total[name], alpha=self.mu * step.rate)
        return gradients


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
    gradients: dict[str, "Tensor"]
    loss: float


class Device(Protocol):
    """Where a user computes: its model, its data, and how far a backward pass gets."""

    def backward(self, step: int) -> Passed:
        """The gradients of a local step (1..K) at the weights as they are."""

    def move(self, gradients: Tensors, rate: float) -> None:
        """Step to other weights."""

    def buffers(self) -> dict[str, "Tensor"]:
        """Copies of the buffers that are sent."""


class LocalUpdate(NamedTuple):
    """The sum of a user's gradients, its buffers' differences, and how far it got."""

    tensors: dict[str, "Tensor"]
    depth: int  # of the last step begun
    steps: int
    loss: float  # the mean over its steps


def local_update(device: Device, layers: "Layers", steps: int, local: Local) -> LocalUpdate:
    """A user's round: as many of its local steps as it gets through, the last one to its depth."""
    before = complete = latest = device.buffers()
    done, depth, total, losses = 1, len(layers) + 1, dict[str, "Tensor"](), list[float]()
    for number in range(1, steps + 1):
        passed = device.backward(number)
        if number > 1 and passed.depth > (1 if local.whole_steps else len(layers)):
            break  # nothing of this step counts: the steps before it are delivered
        done, depth, gradients = number, passed.depth, passed.gradients
        if local.rule is not None and gradients:
            gradients = changed(local, number, gradients, total)
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
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
    local: Local, number: int, gradients: dict[str, "Tensor"], total: Tensors
) -> dict[str, "Tensor"]:
    """The gradients of a step as the rule wants them; before the first, the total is 0."""
    assert local.rule is not None
    if number == 1:
        total = {name: gradient.new_zeros(gradient.shape) for name, gradient in gradients.items()}
    step = LocalStep(number, local.rate, total, local.server, local.own)
    return dict(local.rule.gradient(gradients, step))


def moved(after: "Tensor", before: "Tensor") -> "Tensor":
    """A buffer's difference: what did not move is 0, also where it is infinite (masks are)."""
    return (after - before).masked_fill_(after == before, 0)
