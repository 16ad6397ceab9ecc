"""Every user's own gradients from one pass over the rows of all users.

Signals pass backward through all rows at once, as in the fused engine; only the gradients of
parameters are computed user by user, from what each module was given and the signal that reached
it. Normalisation runs without its weight and bias, which are applied afterwards.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from salf.core.layers import Layers
from salf.engines.base import Weights
from salf.engines.kernels import ThinConvolution, UserBatchNorm

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (UserBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def is_known(module: nn.Module) -> bool:
    """Whether the gradients of a module's parameters can be computed user by user."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    if isinstance(module, CONVOLUTIONS) and (
        isinstance(module.padding, str) or module.padding_mode != "zeros"
    ):
        return False
    known = type(module) in (nn.Linear, *CONVOLUTIONS, *NORMS)
    return known and not hooked and set(module._parameters) <= {"weight", "bias"}


def _normalised(module: nn.Module, inputs: Tensor, weights: Weights) -> Tensor:
    """What a norm makes of its inputs before its weight."""
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(inputs, module.num_groups, None, None, module.eps)
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(inputs, list(module.normalized_shape), None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(inputs, list(module.normalized_shape), None, module.eps)
    own = {f"norm.{name}": tensor for name, tensor in weights.items()}
    normalised: Tensor = functional_call(module, own, (inputs, False))
    return normalised


def _spread(value: Tensor, inputs: Tensor, module: nn.Module) -> Tensor:
    """A norm's weight or bias, to go with its inputs: by channel, or over the last dimensions."""
    by_channel = not isinstance(module, nn.LayerNorm | nn.RMSNorm)
    return value.reshape(-1, *[1] * (inputs.dim() - 2)) if by_channel else value


def _of_weight(module: nn.Module, signal: Tensor, given: Tensor) -> Tensor:
    """The gradient of each user's weight; `signal` and `given` are [users, rows, ...]."""
    if isinstance(module, nn.Linear):
        return torch.bmm(signal.flatten(1, -2).transpose(1, 2), given.flatten(1, -2))
    if not isinstance(module, CONVOLUTIONS):
        return _of_bias(module, signal * given, given)
    assert not isinstance(module.padding, str)
    shape = (module.stride, module.padding, module.dilation)
    settings = (*shape, False, (0,) * len(module.stride), module.groups, [False, True, False])
    backward = torch.ops.aten.convolution_backward
    # One user at a time: faster than a grouped convolution or products of unfolded inputs.
    each = zip(signal, given, strict=True)
    return torch.stack([backward(*one, module.weight, None, *settings)[1] for one in each])


def _of_bias(module: nn.Module, signal: Tensor, given: Tensor) -> Tensor:
    """The gradient of each user's bias."""
    if isinstance(module, nn.Linear):
        return signal.flatten(1, -2).sum(1)
    if isinstance(module, CONVOLUTIONS):
        return signal.flatten(3).sum((1, 3))
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return signal.sum(list(range(1, signal.dim() - len(module.normalized_shape))))
    return signal.sum([dim for dim in range(1, signal.dim()) if dim != 2])


_OF = {"weight": _of_weight, "bias": _of_bias}


class SeparateBlock:
    """Modules run one after the other that find every user's own gradients."""

    def __init__(self, sequence: nn.Sequential, weights: Weights, layers: Layers) -> None:
        full_name = {id(tensor): name for name, tensor in weights.items()}
        self._modules: list[tuple[nn.Module, dict[str, str]]] = []
        for module in sequence:
            own = module.convolution if isinstance(module, ThinConvolution) else module
            tensors = (
                *own.named_parameters(remove_duplicate=False),
                *own.named_buffers(remove_duplicate=False),
            )
            names = {name.removeprefix("norm."): full_name[id(tensor)] for name, tensor in tensors}
            self._modules.append((own, names))
        self._index_of = layers.index_of
        self.gradients: dict[str, Tensor] = {}  # of the last pass by full name, [users, ...]

    @property
    def knows_all(self) -> bool:
        """Whether there is a rule for all modules with parameters."""
        return all(
            is_known(module) or not any(True for _ in module.parameters())
            for module, _ in self._modules
        )

    def __call__(self, inputs: Tensor, users: int, weights: Weights) -> Tensor:
        """The outputs for the rows of `users` users; a backward pass then finds the gradients."""
        self.gradients = {}
        for module, names in self._modules:
            if not is_known(module):
                inputs = module(inputs)
                continue
            own = {name: weights[full] for name, full in names.items()}
            # Without gradients of the parameters, which are noted instead.
            fixed = {name: own[name].detach() for name in _OF if name in own}
            if isinstance(module, NORMS):
                if isinstance(module, UserBatchNorm):
                    module.users, module.moved = users, {}
                given = outputs = _normalised(module, inputs, own)
                if "weight" in fixed:
                    outputs = outputs * _spread(fixed["weight"], outputs, module)
                if "bias" in fixed:
                    outputs = outputs.add_(_spread(fixed["bias"], outputs, module))
            else:
                given, outputs = inputs, functional_call(module, fixed, (inputs,))
            for name in fixed:
                note = _OF[name], module, users, names[name], self.gradients
                outputs = _Noting.apply(outputs, given, own[name], *note)  # type: ignore[no-untyped-call]
            inputs = outputs
        return inputs

    def update_of(self, column: int) -> dict[str, Tensor]:
        """The gradients of one of the users, and how it moved running statistics."""
        update = {name: gradients[column] for name, gradients in self.gradients.items()}
        for module, names in self._modules:
            if isinstance(module, UserBatchNorm):
                for name, moved in module.moved.items():
                    if (full := names[name]) in self._index_of:
                        counter = not moved.dtype.is_floating_point
                        update[full] = moved if counter else moved[column]
        return update


class _Noting(torch.autograd.Function):
    """Passes outputs on; backward, notes the gradient of each user's weight or bias."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, given: Tensor, parameter: Tensor, *note: Any) -> Tensor:
        ctx.mark_dirty(outputs)  # a view of them could not be changed in place by the next module
        ctx.save_for_backward(given)
        ctx.note = note
        return outputs

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        (signal,), (given,) = signals, ctx.saved_tensors
        kind, module, users, name, gradients = ctx.note
        if ctx.needs_input_grad[2]:
            each = (tensor.view(users, -1, *tensor.shape[1:]) for tensor in (signal, given))
            found = kind(module, *each)
            # Modules may share a parameter.
            gradients[name] = gradients[name] + found if name in gradients else found
        return signal, *[None] * (len(ctx.note) + 2)
