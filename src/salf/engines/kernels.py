"""Kernels that compute what PyTorch's own compute, for many users at once or faster.

Pooling and batch norm have the values and gradients of PyTorch's own bit for bit, the others to
rounding. Which are used where: engines/calls.py.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from salf.common.errors import SalfError

AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
# oneDNN's product with transposed weights; where PyTorch has no oneDNN, there is none.
PRODUCT = torch.ops.mkldnn._linear_pointwise if torch._C._has_mkldnn else None


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, which can be differentiated, or oneDNN's, which cannot."""
    if torch.is_grad_enabled():
        return F.linear(inputs, weight, bias)
    return PRODUCT(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return, misc]


class Linear(torch.autograd.Function):
    """`F.linear` by oneDNN, which is as fast on any vendor's processor."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (inputs, weight) = signals, ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        rows = signal.flatten(0, -2)
        return (
            product(signal, weight.t()) if of_inputs else None,
            product(rows.t(), inputs.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


class EachConvolution(torch.autograd.Function):
    """Convolutions of [users, rows, ...] with [users, ...] weights; shared ones have stride 0.

    User by user, because a grouped one is slower; so are products of unfolded inputs.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.settings = settings
        if weight.stride(0) == 0:
            own = weight[0], None if bias is None else bias[0]
            outputs = F.conv2d(inputs.flatten(0, 1), *own, *settings)
            return outputs.view(*inputs.shape[:2], *outputs.shape[1:])
        each = zip(inputs, weight, repeat(None) if bias is None else bias, strict=False)
        return torch.stack([F.conv2d(*one, *settings) for one in each])

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (inputs, weight) = signals, ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        needed = list(ctx.needs_input_grad[:3])
        full = thin_padding(weight[0], *ctx.settings) if needed[0] else None
        needed[0] &= full is None
        more = [weight.shape[1]], stride, padding, dilation, False, (0, 0), groups, needed
        backward, each = (
            torch.ops.aten.convolution_backward,
            zip(signal, inputs, weight, strict=True),
        )
        found = zip(*(backward(*one, *more) for one in each), strict=True)
        below, *own = [None if parts[0] is None else torch.stack(parts) for parts in found]
        if full is not None:
            pairs = zip(signal, weight, strict=True)
            below = torch.stack([turned(s, w, full, dilation) for s, w in pairs])
        return below, *own, *[None] * 4


# Output channels up to which the inputs' gradient of a convolution is faster as a convolution.
MOST_THIN = 8


def thin_padding(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> list[int] | None:
    """What a thin 2-d convolution's signal is padded by, so that it is as large as the inputs."""
    if len(weight) > MOST_THIN or tuple(stride) != (1, 1) or groups > 1:
        return None
    sizes = zip(dilation, weight.shape[2:], padding, strict=True)
    full = [step * (size - 1) - before for step, size, before in sizes]
    return full if min(full) >= 0 and weight.is_floating_point() else None


def turned(signal: Tensor, weight: Tensor, padding: Sequence[int], dilation: Any) -> Tensor:
    """The gradient of a convolution's inputs, as a convolution of the signal."""
    kernels = weight.flip(2, 3).transpose(0, 1)
    return F.conv2d(signal, kernels, padding=padding, dilation=dilation)


class ThinBelow(torch.autograd.Function):
    """Passes a thin convolution's outputs on; backward, adds the gradient of its inputs.

    PyTorch's CPU kernels sum over output channels in blocks of 16 to find it. The same gradient as
    a convolution of the signal takes half the time.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, inputs: Tensor, weight: Tensor, padding: Any, dilation: Any
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.settings = padding, dilation
        ctx.mark_dirty(outputs)  # a view of them could not be changed in place by the next module
        return outputs

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (weight,) = signals, ctx.saved_tensors
        return signal, turned(signal, weight, *ctx.settings), None, None, None


class ChannelsLastPool(torch.autograd.Function):
    """PyTorch's own, which is slow backward unless the signal has its channels last, too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *settings: Any) -> Tensor:
        outputs, indices = torch.ops.aten.max_pool2d_with_indices(inputs, *settings)
        ctx.save_for_backward(inputs, indices)
        ctx.settings = settings
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        inputs, indices = ctx.saved_tensors
        signal = signals[0].contiguous(memory_format=torch.channels_last)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(signal, inputs, *ctx.settings, indices), *[None] * len(ctx.settings)


class HalvingMaxPool(torch.autograd.Function):
    """`F.max_pool2d(2)`, several times faster on a CPU: PyTorch's walks window by window."""

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
