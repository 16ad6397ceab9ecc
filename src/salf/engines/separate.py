"""Every user's own gradients from one pass over the rows of all users.

Signals pass backward through all rows at once, as in the fused engine; only the gradients of
parameters are computed user by user, from what each module was given and the signal that reached
it. Normalisation runs without its weight and bias, which are applied afterwards.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from salf.core.layers import Layers
from salf.engines.base import Weights
from salf.engines.kernels import ThinConvolution, UserBatchNorm


class Kernel(Protocol):
    """The forward pass of a module with a weight, and its gradients."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The outputs."""

    def below(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the inputs."""

    def of_weight(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the weight of each user; `signal` and `inputs` are [users, rows, ...]."""

    def of_bias(self, signal: Tensor) -> Tensor:
        """The gradient of the bias of each user."""


class _Linear:
    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(inputs, weight, bias)

    def below(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return signal @ weight

    def of_weight(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(signal.flatten(1, -2).transpose(1, 2), inputs.flatten(1, -2))

    def of_bias(self, signal: Tensor) -> Tensor:
        return signal.flatten(1, -2).sum(1)


class _Convolution:
    def __init__(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        assert not isinstance(module.padding, str)
        shape = (module.stride, module.padding, module.dilation)
        self._settings = (*shape, False, (0,) * len(module.stride), module.groups)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = torch.ops.aten.convolution(inputs, weight, bias, *self._settings)
        return outputs

    def below(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return self._backward(signal, inputs, weight, 0)

    def of_weight(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        # One user at a time: faster than a grouped convolution or products of unfolded inputs.
        each = zip(signal, inputs, strict=True)
        return torch.stack([self._backward(*one, weight, 1) for one in each])

    def of_bias(self, signal: Tensor) -> Tensor:
        return signal.flatten(3).sum((1, 3))

    def _backward(self, signal: Tensor, inputs: Tensor, weight: Tensor, which: int) -> Tensor:
        wanted = [which == 0, which == 1, False]
        found: Tensor = torch.ops.aten.convolution_backward(
            signal, inputs, weight, None, *self._settings, wanted
        )[which]
        return found


class _Affine:
    """What normalisation does last; its parameters begin at a dimension of the inputs."""

    def __init__(self, first: int, dims: int) -> None:
        self._first, self._dims = first, dims  # first is counted from the end if negative

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs = inputs * self._spread(weight, inputs)
        return outputs if bias is None else outputs.add_(self._spread(bias, inputs))

    def below(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return signal * self._spread(weight, inputs)

    def of_weight(self, signal: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return self.of_bias(signal * inputs)

    def of_bias(self, signal: Tensor) -> Tensor:
        first = self._first + (1 if self._first > 0 else signal.dim())
        own = range(first, first + self._dims)
        return signal.sum([dim for dim in range(1, signal.dim()) if dim not in own])

    def _spread(self, value: Tensor, inputs: Tensor) -> Tensor:
        first = self._first % inputs.dim()
        return value.reshape(*value.shape, *[1] * (inputs.dim() - first - self._dims))


def kernel_of(module: nn.Module) -> Kernel | None:
    """How the gradients of a module's parameters are computed user by user; None if they cannot."""
    kind, hooks = type(module), (module._forward_hooks, module._forward_pre_hooks)
    if any(hooks) or set(module._parameters) - {"weight", "bias"}:
        return None
    if kind is nn.Linear:
        return _Linear()
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        known = kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and not isinstance(module.padding, str)
        return _Convolution(module) if known and module.padding_mode == "zeros" else None
    if kind in (UserBatchNorm, nn.GroupNorm):
        return _Affine(1, 1)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and kind in (nn.LayerNorm, nn.RMSNorm):
        dims = len(module.normalized_shape)
        return _Affine(-dims, dims)
    return None


class SeparateBlock:
    """Modules run one after the other that find every user's own gradients."""

    def __init__(self, sequence: nn.Sequential, weights: Weights, layers: Layers) -> None:
        full_name = {id(tensor): name for name, tensor in weights.items()}
        self._modules: list[tuple[nn.Module, Kernel | None, dict[str, str]]] = []
        for module in sequence:
            if isinstance(module, ThinConvolution):
                module = module.convolution
            tensors = (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            )
            names = {name: full_name[id(tensor)] for name, tensor in tensors}
            self._modules.append((module, kernel_of(module), names))
        self._index_of = layers.index_of
        self.gradients: dict[str, Tensor] = {}  # of the last pass by full name, [users, ...]

    @property
    def knows_all(self) -> bool:
        """Whether there is a rule for all modules with parameters."""
        return all(
            kernel is not None or not any(True for _ in module.parameters())
            for module, kernel, _ in self._modules
        )

    def __call__(self, inputs: Tensor, users: int, weights: Weights) -> Tensor:
        """The outputs for the rows of `users` users; a backward pass then finds the gradients."""
        self.gradients = {}
        for module, kernel, names in self._modules:
            if kernel is None:
                inputs = module(inputs)
                continue
            if isinstance(module, UserBatchNorm):
                module.users, module.moved = users, {}
                own = {name: weights[full] for name, full in names.items()}
                inputs = functional_call(module, own, (inputs, False))
            else:
                inputs = _normalised(module, inputs)
            prefix = "norm." if isinstance(module, UserBatchNorm) else ""
            weight, bias = names.get(f"{prefix}weight"), names.get(f"{prefix}bias")
            if weight is not None:
                inputs = _Noting.apply(  # type: ignore[no-untyped-call]
                    inputs,
                    weights[weight],
                    None if bias is None else weights[bias],
                    kernel,
                    users,
                    (weight, bias),
                    self.gradients,
                )
        return inputs

    def update_of(self, column: int) -> dict[str, Tensor]:
        """The gradients of one of the users, and how it moved running statistics."""
        update = {name: gradients[column] for name, gradients in self.gradients.items()}
        for module, _, names in self._modules:
            if isinstance(module, UserBatchNorm):
                for name, moved in module.moved.items():
                    if (full := names[f"norm.{name}"]) in self._index_of:
                        counter = not moved.dtype.is_floating_point
                        update[full] = moved if counter else moved[column]
        return update


def _normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """What a normalisation makes of its inputs before its weight; others leave them alone."""
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(inputs, module.num_groups, None, None, module.eps)
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(inputs, list(module.normalized_shape), None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(inputs, list(module.normalized_shape), None, module.eps)
    return inputs


class _Noting(torch.autograd.Function):
    """Runs a kernel; backward, notes the gradients of its parameters user by user."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kernel: Kernel,
        users: int,
        names: tuple[str, str | None],
        gradients: dict[str, Tensor],
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.kernel, ctx.users, ctx.names, ctx.gradients = kernel, users, names, gradients
        return kernel.forward(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (inputs, weight) = signals, ctx.saved_tensors
        kernel, users = ctx.kernel, ctx.users
        own = signal.view(users, -1, *signal.shape[1:])
        if ctx.needs_input_grad[1]:
            given = inputs.view(users, -1, *inputs.shape[1:])
            _add(ctx.gradients, ctx.names[0], kernel.of_weight(own, given, weight))
        if ctx.needs_input_grad[2]:
            _add(ctx.gradients, ctx.names[1], kernel.of_bias(own))
        below = kernel.below(signal, inputs, weight) if ctx.needs_input_grad[0] else None
        return below, None, None, None, None, None, None


def _add(gradients: dict[str, Tensor], name: str, found: Tensor) -> None:
    """Modules may share a parameter."""
    gradients[name] = gradients[name] + found if name in gradients else found
