"""Every user's own gradients from one pass over the rows of all users.

Signals pass backward through all rows at once, as in the fused engine; only the gradients of
parameters are computed user by user, from what each module was given and the signal that reached
it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from salf.engines.base import Weights
from salf.engines.kernels import ThinConvolution, UserBatchNorm

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_known(module: nn.Module) -> bool:
    """Whether the gradients of a module's parameters can be computed user by user."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    if isinstance(module, CONVOLUTIONS) and (
        isinstance(module.padding, str) or module.padding_mode != "zeros"
    ):
        return False
    known = type(module) in (nn.Linear, *CONVOLUTIONS)
    return known and not hooked and set(module._parameters) <= {"weight", "bias"}


def _of_weight(module: nn.Module, signal: Tensor, given: Tensor) -> Tensor:
    """The gradient of each user's weight; `signal` and `given` are [users, rows, ...]."""
    if isinstance(module, nn.Linear):
        return torch.bmm(signal.flatten(1, -2).transpose(1, 2), given.flatten(1, -2))
    assert isinstance(module, CONVOLUTIONS)
    assert not isinstance(module.padding, str)
    shape = (module.stride, module.padding, module.dilation)
    settings = (*shape, False, (0,) * len(module.stride), module.groups, [False, True, False])
    backward = torch.ops.aten.convolution_backward
    # One user at a time: faster than a grouped convolution or products of unfolded inputs.
    each = zip(signal, given, strict=True)
    return torch.stack([backward(*one, module.weight, None, *settings)[1] for one in each])


def _of_bias(module: nn.Module, signal: Tensor, given: Tensor) -> Tensor:
    """The gradient of each user's bias."""
    channels = 2 if isinstance(module, CONVOLUTIONS) else signal.dim() - 1
    return signal.sum([dim for dim in range(1, signal.dim()) if dim != channels])


_OF = {"weight": _of_weight, "bias": _of_bias}


class SeparateBlock:
    """Modules run one after the other that find every user's own gradients."""

    def __init__(self, sequence: nn.Sequential, weights: Weights) -> None:
        full_name = {id(tensor): name for name, tensor in weights.items()}
        self._modules: list[tuple[nn.Module, dict[str, str]]] = []
        for module in sequence:
            own = module.own if isinstance(module, ThinConvolution) else module
            tensors = own.named_parameters(remove_duplicate=False)
            self._modules.append((own, {name: full_name[id(tensor)] for name, tensor in tensors}))
        self.gradients: dict[str, Tensor] = {}  # of the last pass by full name, [users, ...]

    @property
    def knows_all(self) -> bool:
        """Whether there is a rule for all modules with parameters."""
        return all(
            is_known(module) or not (names or isinstance(module, UserBatchNorm))
            for module, names in self._modules
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
            fixed = {name: tensor.detach() for name, tensor in own.items()}
            outputs = functional_call(module, fixed, (inputs,))
            for name in fixed:
                note = _OF[name], module, users, names[name], self.gradients
                outputs = _Noting.apply(outputs, inputs, own[name], *note)  # type: ignore[no-untyped-call]
            inputs = outputs
        return inputs

    def update_of(self, column: int) -> dict[str, Tensor]:
        """The gradients of one of the users."""
        return {name: gradients[column] for name, gradients in self.gradients.items()}


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
