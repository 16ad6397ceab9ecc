"""Modules that compute what PyTorch's own compute, for many users at once or faster.

Values and gradients are those of the modules they stand in for, bit for bit; the gradients below a
thin convolution are to rounding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _pair

from salf.common.errors import SalfError
from salf.core.narrow import BATCH_NORMS

LEAST_POOLED = 2**15  # numbers; for fewer, PyTorch's own pooling is as fast
# Output channels up to which the inputs' gradient of a convolution is faster as a convolution.
MOST_THIN = 8

AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


# Not subclasses, which may do anything.
STOOD_IN_FOR = (*BATCH_NORMS, nn.MaxPool2d, nn.Conv2d)


def stand_in(module: nn.Module) -> nn.Module:
    """The module to run in place of one of these on the rows of many users; it may be itself."""
    if type(module) in BATCH_NORMS:
        return UserBatchNorm(module)  # type: ignore[arg-type]
    if type(module) is nn.MaxPool2d and not module.return_indices:
        sizes = module.kernel_size, module.stride, module.padding, module.dilation
        if halves(*sizes, module.ceil_mode):
            return HalvingMaxPool(module)
    if type(module) is nn.Conv2d and _is_thin(module):
        return ThinConvolution(module)
    return module


def halves(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> bool:
    """Whether a pooling of these sizes halves height and width."""
    pairs = [_pair(size) for size in (kernel_size, stride, padding, dilation)]
    return not ceil_mode and pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]


def _is_thin(convolution: nn.Conv2d) -> bool:
    if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
        return False
    stride, padding, dilation = convolution.stride, convolution.padding, convolution.dilation
    return (
        thin_padding(convolution.weight, stride, padding, dilation, convolution.groups) is not None
    )


class StandIn(nn.Module):
    """A module in place of another one, whose attributes it has."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def __getattr__(self, name: str) -> Any:
        """Weight, bias and all else, which the module around it may read."""
        own = super().__getattr__("own")
        return own if name == "own" else getattr(own, name)

    @property
    def hooked(self) -> bool:
        """Whether a pass must run the module itself."""
        own = self.own
        forward = own._forward_hooks or own._forward_pre_hooks
        return bool(forward or own._backward_hooks or own._backward_pre_hooks)


class HalvingMaxPool(StandIn):
    """`nn.MaxPool2d(2)`, several times faster on a CPU: PyTorch's walks window by window."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Halve height and width."""
        if self.hooked or inputs.numel() < LEAST_POOLED:
            return self.own(inputs)  # type: ignore[no-any-return]
        return halved(inputs)


def halved(inputs: Tensor) -> Tensor:
    """The largest of each two by two."""
    return _HalvingMaxPool.apply(inputs)  # type: ignore[no-any-return, no-untyped-call]


class _HalvingMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        height, width = inputs.shape[-2] // 2 * 2, inputs.shape[-1] // 2 * 2
        upper, lower = inputs[..., 0:height:2, :width], inputs[..., 1:height:2, :width]
        a, b = upper[..., 0::2], upper[..., 1::2]
        c, d = lower[..., 0::2], lower[..., 1::2]
        above, below = torch.maximum(a, b), torch.maximum(c, d)
        if ctx.needs_input_grad[0]:
            # Where in the image each maximum is, the first one where several are equal.
            wide = inputs.shape[-1]
            corner = torch.arange(0, height, 2, device=inputs.device)[:, None] * wide
            corner = corner + torch.arange(0, width, 2, device=inputs.device)
            is_below, right_above, right_below = below > above, b > a, d > c
            # The same as torch.where(is_below, right_below, right_above), which is far slower.
            is_right = right_above ^ ((right_above ^ right_below) & is_below)
            # In small integers first, which take a tenth of the time that those of 8 bytes take.
            number = torch.uint8 if wide < 255 else torch.int32
            offset = is_below.to(number).mul_(wide).add_(is_right)
            ctx.save_for_backward(corner + offset)
            ctx.shape = inputs.shape
        return torch.maximum(above, below)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Tensor:
        (indices,) = ctx.saved_tensors
        # Only the shape of the inputs is needed, so they are not kept.
        inputs = signals[0].new_empty(()).expand(ctx.shape)
        below: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            signals[0], inputs, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
        )
        return below


class ThinConvolution(StandIn):
    """A convolution with few output channels and stride 1.

    PyTorch's CPU kernels sum over output channels in blocks of 16 to find the gradient of the
    inputs. The same gradient as a convolution of the signal takes half the time.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve."""
        own = self.own
        slow = inputs.requires_grad and inputs.device.type == "cpu"
        if not slow or self.hooked or torch.is_autocast_enabled("cpu"):
            return own(inputs)  # type: ignore[no-any-return]
        assert isinstance(own, nn.Conv2d)
        settings = own.stride, own.padding, own.dilation, own.groups
        padding = thin_padding(own.weight, *settings)
        outputs: Tensor = _InputGradient.apply(  # type: ignore[no-untyped-call]
            own(inputs.detach()), inputs, own.weight, padding, own.dilation
        )
        return outputs


def thin_padding(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> list[int] | None:
    """What a thin convolution's signal is padded by, so that it is as large as the inputs."""
    if len(weight) > MOST_THIN or tuple(stride) != (1, 1) or groups > 1:
        return None
    sizes = zip(dilation, weight.shape[2:], padding, strict=True)
    full = [step * (size - 1) - before for step, size, before in sizes]
    return full if min(full) >= 0 and weight.is_floating_point() else None


class _InputGradient(torch.autograd.Function):
    """Passes a convolution's outputs on; backward, adds the gradient of its inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        weight: Tensor,
        padding: list[int],
        dilation: tuple[int, ...],
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.padding, ctx.dilation = padding, dilation
        ctx.mark_dirty(outputs)  # a view of them could not be changed in place by the next module
        return outputs

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (weight,) = signals, ctx.saved_tensors
        return signal, turned(signal, weight, ctx.padding, ctx.dilation), None, None, None


def turned(signal: Tensor, weight: Tensor, padding: Sequence[int], dilation: Any) -> Tensor:
    """The gradient of a convolution's inputs, as a convolution of the signal."""
    kernels = weight.flip(2, 3).transpose(0, 1)
    return F.conv2d(signal, kernels, padding=padding, dilation=dilation)


class UserBatchNorm(nn.Module):
    """Batch norm of several users' rows at once, each user with its own batch statistics."""

    def __init__(self, norm: AnyBatchNorm) -> None:
        super().__init__()
        self.norm = norm
        self.users = 1
        # Each user's change of the running statistics, by name, since this was last emptied, in
        # passes with a graph.
        self.moved: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise; the module's own running statistics stay as they are."""
        norm, users = self.norm, self.users
        if not norm.training:
            return norm(inputs)  # type: ignore[no-any-return]
        rows, left_over = divmod(len(inputs), users)
        if left_over:
            raise SalfError(f"batch norm gets {len(inputs)} rows for {users} users.")
        if inputs[:rows].numel() == inputs.shape[1]:
            raise SalfError("batch norm needs more than one value per channel: use larger batches.")
        before = {name: value for name, value in norm._buffers.items() if value is not None}
        moved = self.moved if torch.is_grad_enabled() else {}
        # A module that is used twice in one pass goes on from where its first use left it.
        after = {
            name: value.repeat(users, 1) + moved[name] if moved else value.repeat(users, 1)
            for name, value in before.items()
            if name != "num_batches_tracked"
        }
        momentum, counter = norm.momentum, norm.num_batches_tracked
        if momentum is None and counter is not None:  # a plain mean over all batches so far
            momentum = 1.0 / float(counter + moved.get("num_batches_tracked", 0) + 1)
        mean, variance = after.get("running_mean"), after.get("running_var")
        options = norm.weight, norm.bias, True, momentum or 0.0, norm.eps
        outputs = torch.cat(
            [
                F.batch_norm(
                    inputs[u * rows : (u + 1) * rows],
                    None if mean is None else mean[u],
                    None if variance is None else variance[u],
                    *options,
                )
                for u in range(users)
            ]
        )
        if torch.is_grad_enabled():
            if counter is not None:
                after["num_batches_tracked"] = counter + moved.get("num_batches_tracked", 0) + 1
            self.moved = {name: value - before[name] for name, value in after.items()}
        return outputs
