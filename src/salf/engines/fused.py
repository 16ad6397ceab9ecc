"""The fused engine: a whole round of a group as one backward pass over all its users' rows.

All users of a group start from the same weights and take one step, so the round is one backward
pass over the concatenated batch, provided that

- the parameter gradient of layer l weighs user u's rows by c[l, u]: the signal that reaches layer
  l carries c[l, u] / s_l, with s_l = max_u c[l, u] multiplied onto the gradient afterwards, and at
  the boundary below layer l user u's rows are scaled by the ratio to what layer l - 1 needs. For
  SALF all users of U^l weigh the same, so every ratio is 1 and nothing is scaled at all;
- users that stopped need no backward: users are sorted by depth, so U^l is the first rows of the
  batch. Those run with a graph, the others under no_grad, and the two are joined one layer up.

The round then costs what the devices computed. Rows of different users must not interact: batch
norm keeps each user's own statistics, at any depth inside a block.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers, flatten, is_sequential
from salf.core.narrow import BATCH_NORMS
from salf.engines.base import Network, Rows, Weights
from salf.engines.blocks import BlockEngine, Signals
from salf.engines.stacked import StackedEngine, obstacle
from salf.methods import Group

# For a plain nn.Sequential, whose modules' outputs are counted instead. (Measured:
# benchmarks/engines.py, benchmarks/memory.py.)
CHUNK_OF_OUTPUTS = 16 * 2**20

_POOLS = ("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
ROWWISE: frozenset[type[nn.Module]] = frozenset(
    {
        *(
            getattr(nn, f"{kind}{n}d")
            for kind in (*_POOLS, "Conv", "ConvTranspose")
            for n in (1, 2, 3)
            if hasattr(nn, f"{kind}{n}d")
        ),
        *(nn.Linear, nn.Identity, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
        *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.PReLU),
        *(nn.LogSigmoid, nn.Hardsigmoid, nn.LocalResponseNorm, nn.ZeroPad2d, nn.Upsample),
    }
)


def blocks_of(model: nn.Module, layers: Layers) -> list[list[nn.Module]] | str:
    """The model as L blocks of modules, one per layer, or the reason why it is not one."""
    if not is_sequential(model):
        return f"{type(model).__name__} is not a plain nn.Sequential"
    index_of = layers.index_of
    owner = {id(p): index_of[name] for name, p in model.named_parameters() if name in index_of}
    blocks: list[list[nn.Module]] = [[] for _ in layers]
    current = 0
    seen: set[int] = set()
    for name, module in flatten(model):
        if not seen and getattr(module, "inplace", False):
            return f"{name} modifies its input in place"
        owned = {owner[id(p)] for p in module.parameters() if id(p) in owner}
        if len(owned) > 1:
            return f"{name} has parameters of more than one layer"
        if owned & set(range(current)) or id(module) in seen:
            return f"{name} belongs to a layer below the one before it"
        if owned:
            seen.add(id(module))
        current = max(owned, default=current)
        blocks[current].append(module)
    return blocks


def doubt(model: nn.Module) -> str | None:
    """What in an nn.Sequential is not known to keep the rows of different users apart."""
    for name, module in flatten(model):
        if not (type(module) in ROWWISE or _is_safe(module)):
            return f"{name} ({type(module).__name__}) might mix the rows of different users"
        for buffer, _ in module.named_buffers():
            if type(module) not in BATCH_NORMS:
                return f"{name} has a buffer, {buffer}, that its forward pass may change"
    return None


def _is_safe(module: nn.Module) -> bool:
    """Modules whose safety depends on how they were made."""
    if type(module) is nn.Flatten:
        return bool(module.start_dim >= 1)
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim >= 1
    if type(module) in (nn.Softmax, nn.LogSoftmax):
        # Counted from the end, only the last dimension is certain not to be the rows.
        return isinstance(module.dim, int) and (module.dim >= 1 or module.dim == -1)
    if type(module) is nn.Embedding:
        return not module.scale_grad_by_freq and module.max_norm is None
    return type(module) in BATCH_NORMS


class FusedEngine(BlockEngine):
    """One pass per group of users that share a network; equal to the loop engine to rounding."""

    name = "fused"
    _stacked: StackedEngine | None = None
    _tried_to_stack = False

    def _modules(self) -> list[list[nn.Module]]:
        blocks = blocks_of(self.model, self.layers)
        if isinstance(blocks, str):
            raise self._refusal(blocks)
        return blocks

    def _forward(self, inputs: Tensor) -> Tensor:
        for block in self._blocks:
            inputs = block.sequence(inputs)
        return inputs

    def _compute_together(
        self,
        groups: Sequence[Group],
        network: Network,
        rows: Rows,
        aggregate: LayerwiseAggregate,
    ) -> float:
        for group in groups:
            reach = group.weights > 0
            if not reach.all() and (reach[:-1] & ~reach[1:]).any():
                # A user counts in a layer and not in all later ones: no signal is right for that.
                return sum(self._separately(each, network, rows, aggregate) for each in groups)
        return super()._compute_together(groups, network, rows, aggregate)

    def _sets(self, weights: Floats) -> list[Ints]:
        """All users; who got furthest comes first, so that every U^l is the first rows."""
        reach = weights > 0
        if reach.all():
            return [np.arange(reach.shape[1])]
        return [np.argsort(np.argmax(reach, axis=0), kind="stable")]

    def _separately(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add every user's own update by itself, from one pass over the rows of all users.

        A model that cannot have stacked weights is computed user by user.
        """
        if not self._tried_to_stack:
            self._tried_to_stack, (inputs, _) = True, rows(group.users[:1])
            if obstacle(self.model, inputs) is None:
                self._stacked = StackedEngine(self.model, self.layers, self.loss)
        if self._stacked is None:
            return super()._separately(group, network, rows, aggregate)
        return self._stacked.computed(group, network, rows, aggregate)

    def _outputs(
        self,
        signals: Signals,
        forward: Weights | None,
        inputs: Tensor,
    ) -> Tensor:
        """Run all rows forward: through layer l those of U^l with a graph, the rest without."""
        users = signals.users
        rows = len(inputs) // users
        reached = rest = inputs
        before = 0
        for index, count in enumerate(signals.reached):
            block = self._blocks[index]
            if before and not signals.all_ones:
                ratio = reached.new_tensor(signals.ratio(index)).repeat_interleave(rows)
                reached = _scale_signal(reached, ratio)
            if count == users and not before:
                reached = rest  # everybody at once: small models feel every slice
            elif joining := (count - before) * rows:
                reached = torch.cat([reached, rest[:joining]]) if before else rest[:joining]
                rest = rest[joining:]
            if self.dropout is not None:
                self.dropout.places, self.dropout.graph = range(count), True
            if count:
                reached = block(reached, count, forward)
            if self.dropout is not None:
                self.dropout.places, self.dropout.graph = range(count, users), False
            if count < users:
                with torch.no_grad():
                    rest = block(rest, users - count, forward)
            before = count
        return reached

    def _least_chunk_bytes(self) -> int:
        return super()._least_chunk_bytes() if doubt(self.model) else CHUNK_OF_OUTPUTS

    def _activation_bytes(self, inputs: Tensor) -> int:
        if doubt(self.model):
            return super()._activation_bytes(inputs)
        sizes = [inputs.nbytes]
        handles = [
            module.register_forward_hook(lambda *call: sizes.append(call[-1].nbytes))
            for block in self._blocks
            for module in block.sequence
        ]
        with torch.no_grad():
            self.outputs(inputs, 1)
        for handle in handles:
            handle.remove()
        return sum(sizes)


class _ScaleSignal(torch.autograd.Function):
    """Identity forward; backward, each row of the signal is multiplied by its own factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        (signal,), (factor,) = signals, ctx.saved_tensors
        return signal * factor.view(-1, *[1] * (signal.dim() - 1)), None


def _scale_signal(value: Tensor, factor: Tensor) -> Tensor:
    scaled: Tensor = _ScaleSignal.apply(value, factor)  # type: ignore[no-untyped-call]
    return scaled
