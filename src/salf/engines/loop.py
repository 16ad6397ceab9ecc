"""The loop engine: one user at a time, any module. Slow, obvious, and the oracle."""

import numpy as np
import torch
from torch.func import functional_call

from salf.aggregate import LayerwiseAggregate
from salf.backprop import backward_to, moved
from salf.engines.base import Engine, Network, Rows
from salf.engines.losses import user_losses
from salf.methods import Group


class LoopEngine(Engine):
    """Every user in turn: forward, backpropagate to its depth, add what it reached."""

    name = "loop"

    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        total = 0.0
        for column, user in enumerate(group.users):
            weights = group.weights[:, column]
            depth = 1 + int(np.argmax(weights > 0))
            inputs, targets = rows(np.array([user]))
            # A forward pass moves running statistics: this user's difference is kept, and the
            # model is put back for the next user.
            buffers = {name: network.leaves[name].clone() for name in self._buffers(network)}
            forward = network.forward_weights()
            if forward is None:
                outputs = self.model(inputs)
            else:
                outputs = functional_call(self.model, dict(forward), (inputs,))
            loss = user_losses(self.loss, outputs, targets, users=1).sum()
            update = backward_to(depth, loss, network.leaves, self.layers)
            for name, before in buffers.items():
                after = network.leaves[name]
                # Flags have no mean, and what belongs to no layer is not sent.
                sent = after.dtype != torch.bool and self.layers.index_of.get(name, -1) >= depth - 1
                if sent and network.narrow is None:
                    update[name] = moved(after, before)
                after.copy_(before)
            aggregate.add(update, weights, held=network.held)
            total += loss.item()
        return total

    def _buffers(self, network: Network) -> list[str]:
        return [name for name, _ in self.model.named_buffers() if name in network.leaves]
