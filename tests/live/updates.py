"""Updates that a server takes."""

import torch

from salf.core.layers import Layers
from salf.live.update import Update


def of_ones(model, depth=1, seconds=0.0):
    """An update whose gradients, as far as the user got, are all 1."""
    layers = Layers.of(model)
    tensors = {
        name: torch.ones_like(tensor)
        for name, tensor in model.named_parameters()
        if layers.index_of[name] >= depth - 1
    }
    return Update(depth, tensors, 1.0, seconds)
