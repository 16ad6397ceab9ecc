"""A network seen at a share of its width: the first units or channels of every hidden layer.

This is HeteroFL's sub-network. It is a view on the full weights, not another module, so a narrow
user's update names the same parameters and says which entries of them it holds.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import ceil

from torch import Tensor, nn

from salf.aggregate import Held
from salf.errors import SalfError
from salf.layers import flatten, is_sequential

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


def subnetwork(model: nn.Module, width: float) -> SubNetwork:
    """Keep the first share `width` of every hidden layer; inputs and classes stay whole."""
    if not 0 < width <= 1:
        raise SalfError(f"the width of a sub-network must be in (0, 1], not {width}.")
    if not is_sequential(model):
        raise SalfError(
            f"HeteroFL narrows an nn.Sequential of Linear, Conv and BatchNorm modules; "
            f"{type(model).__name__} is not one."
        )
    modules = [(n, m) for n, m in flatten(model) if m.state_dict()]
    last = [n for n, m in modules if isinstance(m, (nn.Linear, *CONVOLUTIONS))][-1:]
    held: dict[str, tuple[slice, ...]] = {}
    scaled: set[str] = set()
    kept, total = 1, 1  # of the units that feed the next module; the input is whole
    for name, module in modules:
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            inputs, units = module.weight.shape[1], module.weight.shape[0]
            if inputs % total or getattr(module, "groups", 1) != 1:
                raise SalfError(f"HeteroFL cannot narrow the layer {name!r} ({module}).")
            fed = slice(inputs // total * kept)  # after a flatten, a channel is several inputs
            kept, total = (units, units) if [name] == last else (ceil(width * units), units)
            held[f"{name}.weight"] = (slice(kept), fed)
            if module.bias is not None:
                held[f"{name}.bias"] = (slice(kept),)
            if [name] != last:
                scaled |= {f"{name}.weight", f"{name}.bias"}
        elif isinstance(module, BATCH_NORMS):
            for entry, tensor in (*module.named_parameters(), *module.named_buffers()):
                # After a flatten a channel is several features, as for the layers above.
                held[f"{name}.{entry}"] = (
                    (slice(len(tensor) // total * kept),) if tensor.dim() else ()
                )
        else:
            raise SalfError(
                f"HeteroFL cannot narrow the layer {name!r}: it narrows Linear, Conv and "
                f"BatchNorm, not {type(module).__name__}."
            )
    return SubNetwork(width, held, frozenset(scaled))


def narrowed(model: nn.Module, width: float) -> nn.Module:
    """A narrow network as a module of its own, to measure it; its weights are not shared."""
    narrow = deepcopy(model)
    held = subnetwork(model, width).held
    for name, tensor in (*narrow.named_parameters(), *narrow.named_buffers()):
        tensor.data = tensor.data[held[name]].clone()
    return narrow
