"""Losses: one value per row, or one value for all rows of a user."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from salf.common.errors import SalfError, in_one_line
from salf.core.arrivals import Floats

# Called with outputs and targets of one user. If it returns several values, the user's loss is
# their mean.
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowLoss:
    """A loss known to return one value (or several) per row, each computed from that row alone.

    It may be called with the rows of many users at once; any other loss is called user by user.
    """

    function: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The values, row by row."""
        return self.function(outputs, targets)


cross_entropy = RowLoss(partial(F.cross_entropy, reduction="none"))  # the default loss


def user_losses(loss: Loss, outputs: Tensor, targets: Tensor, users: int) -> Tensor:
    """The loss of each user; all users have the same number of rows."""
    if isinstance(loss, RowLoss):
        return loss(outputs, targets).reshape(users, -1).mean(1)
    pairs = zip(outputs.chunk(users), targets.chunk(users), strict=True)
    return torch.stack([loss(*pair).mean() for pair in pairs])


def value_of(loss: Tensor) -> float:
    """The value of a loss; on an accelerator the tensor, which is read when the round is over."""
    return loss.item() if loss.device.type == "cpu" else cast("float", loss.detach())


def total_and_objective(
    loss: Loss, outputs: Tensor, targets: Tensor, factors: Floats
) -> tuple[Tensor, Tensor]:
    """The sum of the users' losses, and the same with each user's times its factor."""
    users = len(factors)
    if not (factors == 1).all():
        losses = user_losses(loss, outputs, targets, users)
        return losses.sum(), (losses * losses.new_tensor(factors)).sum()
    if loss is cross_entropy and not targets.is_floating_point():
        # One operation instead of three: small models are measurably faster.
        total = F.cross_entropy(outputs, targets, reduction="sum") * (users / targets.numel())
    elif isinstance(loss, RowLoss):
        values = loss(outputs, targets)
        total = values.sum() * (users / values.numel())
    else:
        total = user_losses(loss, outputs, targets, users).sum()
    return total, total


def checked(loss: Loss, outputs: Tensor, targets: Tensor) -> Loss:
    """Try a loss on example rows: a `RowLoss` if it is one, else the loss, to call user by user.

    Raises a SalfError if the loss fails, or if its values are neither one per row nor a single one.
    """
    of_outputs, of_targets = tuple(outputs.shape), tuple(targets.shape)
    shapes = f"outputs have shape {of_outputs} and targets have shape {of_targets}"
    way_out = _reshape(outputs, targets)
    if loss is cross_entropy and targets.is_floating_point() and targets.shape != outputs.shape:
        raise SalfError(
            "labels are floating-point numbers: pass a loss for them, such as "
            "loss=torch.nn.MSELoss(), or convert class numbers with labels.long()."
        )
    with torch.random.fork_rng(devices=[]):
        try:
            values, broadcast = _evaluate(loss, outputs, targets)
        except Exception as error:  # whatever somebody else's code raises
            raise SalfError(
                f"the loss fails: {in_one_line(error)} ({shapes}, {targets.dtype}){way_out}."
            ) from None
        if broadcast:
            raise SalfError(f"the loss combines different samples: {shapes}{way_out}.")
        if isinstance(loss, RowLoss):
            return loss
        if _is_rowwise(loss, outputs, targets, values):
            return RowLoss(loss)
    if values.numel() == 1:
        return loss
    if len(values) == len(outputs) and values.dim() == 1:
        raise SalfError(
            "the loss returns a value per row that depends on other rows: return their mean."
        )
    raise SalfError(
        f"the loss returns values of shape {tuple(values.shape)}: {shapes}. Return one value per "
        "row, or a single value such as the mean."
    )


def _reshape(outputs: Tensor, targets: Tensor) -> str:
    """The way out where another shape of the labels would do."""
    if targets.shape[1:] == (1,) and not targets.is_floating_point():
        return ". Flatten the labels: labels.reshape(-1)"
    if outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return ""
    return f". Give them the same shape, for example labels.reshape({(-1, *outputs.shape[1:])})"


def _evaluate(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, bool]:
    """The values on all rows, and whether outputs and targets were broadcast to each other."""
    outputs = outputs.detach().requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = loss(outputs, targets)
        if not isinstance(values, Tensor):
            raise TypeError(f"it must return a tensor, not a {type(values).__name__}")
        if not values.requires_grad:
            raise TypeError("its value cannot be differentiated with respect to the outputs")
        torch.autograd.grad(values.sum(), outputs, allow_unused=True)
        if len(outputs) > 2:  # the number of rows may fit by coincidence
            loss(outputs[:-1], targets[:-1])
        broadcast = any("target size" in str(warning.message) for warning in caught)
        if outputs.shape != targets.shape and outputs.numel() == targets.numel() > 1:
            floating = targets.is_floating_point()
            wanted = torch.rand(targets.shape).to(targets) if floating else targets
            some = torch.rand(outputs.shape).to(outputs)
            with suppress(Exception):  # of a loss that takes no other shapes than these
                found, alike = loss(some, wanted), loss(some.reshape(targets.shape), wanted)
                broadcast |= found.shape != alike.shape or not torch.allclose(found, alike)
    return values.detach(), broadcast


def _is_rowwise(loss: Loss, outputs: Tensor, targets: Tensor, values: Tensor) -> bool:
    """Whether every row on its own gives the value that it has among the others."""
    if values.dim() == 0 or len(values) != len(outputs) or len(outputs) < 2:
        return False
    tolerance = torch.finfo(values.dtype).eps ** 0.6  # of the largest value
    largest = float(values.abs().nan_to_num(0, 0).max())
    for row, value in enumerate(values.chunk(len(values))):
        try:
            with torch.no_grad():
                alone = loss(outputs[row : row + 1], targets[row : row + 1])
        except Exception:  # it needs several rows
            return False
        same_shape = alone.shape == value.shape
        if not same_shape or not torch.allclose(alone, value, 0, tolerance * largest, True):
            return False
    return True
