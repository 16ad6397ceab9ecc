"""The grouped engine: any module, one pass over all users whose gradients are weighed alike.

Users whose columns c[:, u] are equal up to a factor reached the same layers, so their part of the
step is one backward pass of the sum of their losses, each times its factor, that stops at their
depth. For the paper's methods that is one pass for each depth. Rows of different users must not
interact: batch norm keeps each user's own statistics.
"""

import numpy as np
from torch import Tensor, nn

from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Floats, Ints
from salf.core.layers import backward_to
from salf.engines.base import Network
from salf.engines.blocks import BlockEngine, RowParts
from salf.engines.losses import total_and_objective


class GroupedEngine(BlockEngine):
    """One pass per depth through the whole model; equal to the loop engine to rounding."""

    name = "grouped"

    def _modules(self) -> list[list[nn.Module]]:
        return [[self.model]]

    def _sets(self, weights: Floats) -> list[Ints]:
        """Columns that are equal up to a factor."""
        shapes = np.round(weights / weights.max(axis=0), 12)
        _, which = np.unique(shapes, axis=1, return_inverse=True)
        return [np.flatnonzero(which == each) for each in range(which.max() + 1)]

    def _one_pass(
        self,
        c: Floats,
        network: Network,
        inputs: Tensor,
        targets: Tensor,
        aggregate: LayerwiseAggregate,
        parts: RowParts | None = None,
    ) -> float:
        scale, users = c.max(1), c.shape[1]
        depth = 1 + int(np.argmax(scale > 0))
        factors = c[depth - 1] / scale[depth - 1]
        (block,) = self._blocks
        outputs = block(inputs, users, network.forward_weights())
        share = None if parts is None else parts.share
        total, objective = total_and_objective(self.loss, outputs, targets, factors, share)
        update = backward_to(depth, objective, network.leaves, self.layers)
        if network.narrow is None:
            moved = block.moved(factors)
            update |= {name: value for name, value in moved.items() if name in self.layers.index_of}
        reached = (c > 0).sum(1) if parts is None else parts.reached(c)
        aggregate.add_sum(update, scale, reached, c.sum(1), network.held)
        return float(total.item())
