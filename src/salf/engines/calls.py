"""Calls of PyTorch's functions that users' own passes compute faster, equal to rounding.

On a CPU in float32, linear layers go to oneDNN, whose products are fast on any vendor's processor,
and convolutions and pooling get their channels last in memory, as their kernels want them. Under
`torch.vmap`, convolutions with weights of each user's own run user by user, not as a grouped one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode

from salf.engines.kernels import LEAST_POOLED, halved, halves, thin_padding, turned

LEAST_WEIGHTS = 2**13  # of a linear layer; with fewer, PyTorch's own product is as fast
MOST_WEIGHTS = 2**18  # of a convolution; it takes too long to put the channels of more of them last
CHANNELS_FIRST = (nn.GroupNorm, nn.LocalResponseNorm, _InstanceNorm)  # slow with channels last
_PRODUCT = torch.ops.mkldnn._linear_pointwise if torch._C._has_mkldnn else None
_is_mapped = torch._C._functorch.is_batchedtensor


class FasterCalls(TorchFunctionMode):
    """Does in a model's forward passes what it knows faster ways for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._last = not any(isinstance(module, CHANNELS_FIRST) for module in model.modules())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = None
        if func is F.linear:
            found = _linear(*args, **kwargs or {})
        elif func is F.conv2d:
            found = _convolution(self._last, *args, **kwargs or {})
        elif func is F.max_pool2d:
            found = _pooling(*args, **kwargs or {})
        elif func is Tensor.view and _channels_last(args[0]):
            args = args[0].contiguous(), *args[1:]  # as it is without this
        return func(*args, **kwargs or {}) if found is None else found


def _suits(*tensors: Tensor) -> bool:
    return not torch.is_autocast_enabled("cpu") and all(
        tensor.dtype is torch.float32 and tensor.device.type == "cpu" for tensor in tensors
    )


def _channels_last(value: Tensor) -> bool:
    if _is_mapped(value) or value.dim() != 4 or value.is_contiguous():
        return False
    return value.is_contiguous(memory_format=torch.channels_last)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if _PRODUCT is None or _is_mapped(inputs) or weight.numel() < LEAST_WEIGHTS:
        return None
    if not inputs.numel() or not _suits(inputs, weight):
        return None
    return _Linear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `F.linear`, which can be differentiated."""
    if torch.is_grad_enabled():
        return F.linear(inputs, weight, bias)
    return _PRODUCT(inputs, weight, bias, "none", [], "")  # type: ignore[no-any-return, misc]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (inputs, weight) = signals, ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        rows = signal.flatten(0, -2)
        return (
            _product(signal, weight.t()) if of_inputs else None,
            _product(rows.t(), inputs.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _convolution(
    last: bool,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if _is_mapped(inputs) or _is_mapped(weight):
        if isinstance(padding, str):
            return None
        settings = *(_pair(each) for each in (stride, padding, dilation)), groups
        each = partial(_EachConvolution.apply, settings)
        return _Mapped.apply(each, inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    if not last or inputs.dim() != 4 or not _suits(inputs, weight):
        return None
    form = torch.channels_last if weight.numel() <= MOST_WEIGHTS else torch.contiguous_format
    inputs = inputs.contiguous(memory_format=form)
    return F.conv2d(inputs, weight, bias, stride, padding, dilation, groups)


class _Mapped(torch.autograd.Function):
    """Under `torch.vmap`, calls a function with the tensors of all users, users first."""

    @staticmethod
    def forward(function: Any, *tensors: Tensor | None) -> Tensor:
        raise NotImplementedError  # without vmap

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing: the function has its own."""

    @staticmethod
    def vmap(info: Any, dims: Any, function: Any, *tensors: Tensor | None) -> tuple[Tensor, int]:
        users = [
            tensor if tensor is None
            else tensor.expand(info.batch_size, *tensor.shape) if dim is None
            else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, dims[1:], strict=True)
        ]  # fmt: skip
        return function(*users), 0


class _EachConvolution(torch.autograd.Function):
    """Convolutions of [users, rows, ...] with each user's own weights; shared ones are one."""

    @staticmethod
    def forward(
        ctx: Any, settings: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.settings = settings
        if weight.stride(0) == 0:  # all users have the same: the first local step
            own = weight[0], None if bias is None else bias[0]
            outputs = F.conv2d(inputs.flatten(0, 1), *own, *settings)
            return outputs.view(*inputs.shape[:2], *outputs.shape[1:])
        each = zip(inputs, weight, repeat(None) if bias is None else bias, strict=False)
        return torch.stack([F.conv2d(*one, *settings) for one in each])

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (inputs, weight) = signals, ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        needed = list(ctx.needs_input_grad[1:])
        full = thin_padding(weight[0], *ctx.settings) if needed[0] else None
        needed[0] &= full is None
        settings = [weight.shape[1]], stride, padding, dilation, False, (0, 0), groups, needed
        backward = torch.ops.aten.convolution_backward
        found = [backward(*one, *settings) for one in zip(signal, inputs, weight, strict=True)]
        below, *own = [
            None if each[0] is None else torch.stack(each) for each in zip(*found, strict=True)
        ]
        if full is not None:
            each = zip(signal, weight, strict=True)
            below = torch.stack([turned(*one, full, dilation) for one in each])
        return None, below, *own


def _pooling(
    inputs: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    sizes = kernel_size, stride or kernel_size, padding, dilation
    if return_indices:
        return None
    if _channels_last(inputs):
        settings = *map(_pair, sizes), ceil_mode
        return _ChannelsLastPool.apply(inputs, settings)  # type: ignore[no-any-return, no-untyped-call]
    if not halves(*sizes, ceil_mode) or inputs.numel() < LEAST_POOLED:
        return None
    if not _is_mapped(inputs):
        return halved(inputs)
    return _Mapped.apply(_halved_each, inputs)  # type: ignore[no-any-return, no-untyped-call]


def _halved_each(inputs: Tensor) -> Tensor:
    outputs = halved(inputs.flatten(0, 1))
    return outputs.view(*inputs.shape[:2], *outputs.shape[1:])


class _ChannelsLastPool(torch.autograd.Function):
    """PyTorch's own, which is slow backward unless the signal has its channels last, too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, settings: Any) -> Tensor:
        outputs, indices = torch.ops.aten.max_pool2d_with_indices(inputs, *settings)
        ctx.save_for_backward(inputs, indices)
        ctx.settings = settings
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        inputs, indices = ctx.saved_tensors
        signal = signals[0].contiguous(memory_format=torch.channels_last)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(signal, inputs, *ctx.settings, indices), None
