"""A network seen at a share of its width: some units or channels of every hidden layer.

This is HeteroFL's sub-network, of the first units, and FedRolex's, whose units are others in every
round. It is a part of the full weights, not another module, so a narrow user's update names the
same parameters and says which entries of them it holds.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.aggregate import Entries, Held
from salf.core.layers import flatten, is_sequential

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class SubNetwork:
    """Which entries of each tensor a narrow user holds, and which outputs its scaler divides."""

    width: float
    held: Held
    scaled: frozenset[str]

    def leaves(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The narrow network's own tensors, cut out of the full ones."""
        return {
            name: weights[name].detach()[where].clone().requires_grad_(weights[name].requires_grad)
            for name, where in self.held.items()
        }

    def forward_view(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the forward pass uses. Dividing weight and bias divides the layer's output.

        HeteroFL's scaler: hidden outputs are divided by the width while training, as in dropout,
        so that the full network sees activations of the size it expects.
        """
        return {
            name: leaf / self.width if name in self.scaled else leaf
            for name, leaf in leaves.items()
        }


def subnetwork(model: nn.Module, width: float, shift: int = 0) -> SubNetwork:
    """Keep the share `width` of every hidden layer; inputs and classes stay whole.

    These are the first units, or with a `shift` those from this one on, round the end of the layer.
    """
    if not 0 < width <= 1:
        raise SalfError(f"the width of a sub-network must be in (0, 1], not {width}.")
    if not is_sequential(model):
        raise SalfError(
            f"HeteroFL narrows an nn.Sequential of Linear, Conv and BatchNorm modules; "
            f"{type(model).__name__} is not one."
        )
    modules = [(n, m) for n, m in flatten(model) if m.state_dict()]
    last = [n for n, m in modules if isinstance(m, (nn.Linear, *CONVOLUTIONS))][-1:]
    held: dict[str, Entries] = {}
    scaled: set[str] = set()
    kept, total = 1, 1  # of the units that feed the next module; the input is whole
    for name, module in modules:
        cannot = SalfError(
            f"HeteroFL cannot narrow the layer {name!r} ({type(module).__name__}): it narrows "
            "Linear, Conv without groups, and BatchNorm."
        )
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            inputs, units = module.weight.shape[1], module.weight.shape[0]
            if inputs % total or getattr(module, "groups", 1) != 1:
                raise cannot
            fed = _window(kept, total, shift, inputs // total)
            kept, total = (units, units) if [name] == last else (ceil(width * units), units)
            rows = _window(kept, total, shift)
            held[f"{name}.weight"] = (rows, fed)
            if isinstance(rows, Tensor) and isinstance(fed, Tensor):
                held[f"{name}.weight"] = (rows[:, None], fed)
            if module.bias is not None:
                held[f"{name}.bias"] = (rows,)
            if [name] != last:
                scaled |= {f"{name}.weight", f"{name}.bias"}
        elif isinstance(module, BATCH_NORMS):
            for entry, tensor in (*module.named_parameters(), *module.named_buffers()):
                own = _window(kept, total, shift, len(tensor) // total) if tensor.dim() else None
                held[f"{name}.{entry}"] = () if own is None else (own,)
        else:
            raise cannot
    return SubNetwork(width, held, frozenset(scaled))


def _window(kept: int, total: int, shift: int, each: int = 1) -> slice | Tensor:
    """So many of all units, from the one with the number `shift` on, as entries of a tensor.

    After a flatten, a channel is several of them: `each`.
    """
    if kept == total or not shift % total:
        return slice(kept * each)
    units = (shift + torch.arange(kept)) % total
    return (units[:, None] * each + torch.arange(each)).flatten()


def narrowed(model: nn.Module, width: float) -> nn.Module:
    """A narrow network as a module of its own, to measure it; its weights are not shared."""
    narrow = deepcopy(model)
    held = subnetwork(model, width).held
    for name, tensor in (*narrow.named_parameters(), *narrow.named_buffers()):
        tensor.data = tensor.data[held[name]].clone()
    return narrow
