"""Calls of PyTorch's functions in a model's forward passes that are computed faster.

On a CPU in float32, large products go to oneDNN, and convolutions and pooling have their channels
last in memory, as their kernels want them. Under `torch.vmap`, convolutions with weights of each
user's own run user by user.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode

from salf.engines.kernels import (
    PRODUCT,
    ChannelsLastPool,
    EachConvolution,
    HalvingMaxPool,
    Linear,
    ThinBelow,
    thin_padding,
)

LEAST_MULTIPLIED = 2**21  # in a product; below, PyTorch's own is as fast
LEAST_POOLED = 2**15  # numbers; for fewer, PyTorch's own pooling is as fast
LEAST_LAST = 16  # output channels; with fewer, channels last are no faster
MOST_LAST = 2**18  # weights of a convolution; to put the channels of more of them last takes long
CHANNELS_FIRST = (nn.GroupNorm, nn.LocalResponseNorm, _InstanceNorm)  # slow with channels last
_is_mapped = torch._C._functorch.is_batchedtensor


class FasterCalls(TorchFunctionMode):
    """Does in a forward pass what it knows faster ways for."""

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
        options, found = kwargs or {}, None
        if func is F.linear:
            found = _linear(*args, **options)
        elif func is F.conv2d:
            found = _convolution(self._last, *args, **options)
        elif func is F.max_pool2d:
            found = _pooling(*args, **options)
        elif func is Tensor.view and _channels_last(args[0]):
            args = args[0].contiguous(), *args[1:]  # as it is without this
        return func(*args, **options) if found is None else found


def _is_as_usual(inputs: Tensor) -> bool:
    """Whether kernels may be chosen: nothing else decides on them, or computes them again."""
    checkpointed = bool(torch._C._autograd._top_saved_tensors_default_hooks(True))
    return not checkpointed and inputs.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _channels_last(value: Tensor) -> bool:
    if _is_mapped(value) or value.dim() != 4 or value.is_contiguous():
        return False
    return value.is_contiguous(memory_format=torch.channels_last)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    large = inputs.numel() * len(weight) >= LEAST_MULTIPLIED and PRODUCT is not None
    floats = inputs.dtype is weight.dtype is torch.float32
    if not large or not floats or _is_mapped(inputs) or not _is_as_usual(inputs):
        return None
    return Linear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


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
    mapped = _is_mapped(inputs) or _is_mapped(weight)
    if isinstance(padding, str) or not (mapped or _is_as_usual(inputs)) or inputs.dim() != 4:
        return None
    settings = *(_pair(each) for each in (stride, padding, dilation)), groups
    if mapped:

        def convolved(*tensors: Tensor | None) -> Tensor:
            return EachConvolution.apply(*tensors, *settings)  # type: ignore[no-any-return, no-untyped-call]

        return _Mapped.apply(convolved, inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    if inputs.requires_grad and (full := thin_padding(weight, *settings)) is not None:
        own = inputs.contiguous()
        outputs = F.conv2d(own.detach(), weight, bias, *settings)
        return ThinBelow.apply(outputs, own, weight, full, settings[2])  # type: ignore[no-any-return, no-untyped-call]
    if not last or len(weight) < LEAST_LAST or inputs.dtype is not torch.float32:
        return None
    form = torch.channels_last if weight.numel() <= MOST_LAST else torch.contiguous_format
    return F.conv2d(inputs.contiguous(memory_format=form), weight, bias, *settings)


def _pooling(
    inputs: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    sizes = [_pair(size) for size in (kernel_size, stride or kernel_size, padding, dilation)]
    if return_indices or not _is_as_usual(inputs):
        return None
    if _channels_last(inputs):
        return ChannelsLastPool.apply(inputs, *sizes, ceil_mode)  # type: ignore[no-any-return, no-untyped-call]
    halves = sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not ceil_mode
    if not halves or inputs.numel() < LEAST_POOLED:
        return None
    if _is_mapped(inputs):
        return _Mapped.apply(_halved_each, inputs)  # type: ignore[no-any-return, no-untyped-call]
    return HalvingMaxPool.apply(inputs)  # type: ignore[no-any-return, no-untyped-call]


def _halved_each(inputs: Tensor) -> Tensor:
    outputs = HalvingMaxPool.apply(inputs.flatten(0, 1))  # type: ignore[no-untyped-call]
    return outputs.view(*inputs.shape[:2], *outputs.shape[1:])  # type: ignore[no-any-return]


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
            each if each is None
            else each.expand(info.batch_size, *each.shape) if dim is None
            else each.movedim(dim, 0)
            for each, dim in zip(tensors, dims[1:], strict=True)
        ]  # fmt: skip
        return function(*users), 0
