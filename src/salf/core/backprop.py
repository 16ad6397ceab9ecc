"""Backpropagation that stops: the gradients of the layers a user reached, and no others."""

from collections.abc import Mapping

import torch
from torch import Tensor

from salf.core.layers import Layers


def backward_to(
    depth: int, loss: Tensor, parameters: Mapping[str, Tensor], layers: Layers
) -> dict[str, Tensor]:
    """[PartGrad]: the gradients of layers d..L, computed without touching the layers below.

    `parameters` maps the names that `layers` uses to the tensors `loss` was computed from.
    A parameter the loss does not depend on gets a gradient of zeros; a frozen one gets none.
    """
    names = [
        name
        for layer in layers.reached(depth)
        for name in layer.parameters
        if parameters[name].requires_grad
    ]
    if not names:
        return {}
    wanted = [parameters[name] for name in names]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, wanted, found, strict=True)
    }
