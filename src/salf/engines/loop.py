"""The loop engine: one user at a time, any module. Slow, obvious, and the oracle."""

import torch
from torch import Tensor
from torch.func import functional_call

from salf.aggregate import LayerwiseAggregate
from salf.arrivals import Ints
from salf.backprop import backward_to, moved
from salf.engines.base import Engine, Network, Rows
from salf.engines.losses import user_losses
from salf.methods import Group


class LoopEngine(Engine):
    """Every user in turn: its local steps, the last one to its depth; add what it reached."""

    name = "loop"
    local_steps = True

    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        total = 0.0
        for column, (steps, depth) in enumerate(zip(group.steps, group.depth, strict=True)):
            user = group.users[column : column + 1]
            update, loss = self._user(user, int(steps), int(depth), network, rows)
            aggregate.add(update, group.weights[:, column], held=network.held)
            total += loss
        return total

    def _user(
        self, user: Ints, steps: int, depth: int, network: Network, rows: Rows
    ) -> tuple[dict[str, Tensor], float]:
        """A user's update, the sum of its gradients, and its mean loss."""
        # A forward pass moves running statistics: this user's difference is kept, and the model is
        # put back for the next user.
        before = self._buffers(network)
        update: dict[str, Tensor] = {}
        losses: list[float] = []
        own = network
        for step in range(1, steps + 1):
            # Layers below the depth of the last step send the statistics of the steps before it.
            earlier = before if step == 1 else self._buffers(network)
            reached = depth if step == steps else 1
            loss = self._loss(own, *rows(user, step))
            gradients = backward_to(reached, loss, own.leaves, self.layers)
            for name, gradient in gradients.items():
                update[name] = update[name] + gradient if name in update else gradient
            losses.append(loss.item())
            if step < steps:
                own = own.moved_by(gradients)
        for name, start in before.items():
            index = self.layers.index_of.get(name, -1)
            end = network.leaves[name] if index >= depth - 1 else earlier[name]
            # Flags have no mean, and what belongs to no layer is not sent.
            sent = start.dtype != torch.bool and index >= (0 if steps > 1 else depth - 1)
            if sent and network.narrow is None:
                update[name] = moved(end, start)
            network.leaves[name].copy_(start)
        return update, sum(losses) / steps

    def _loss(self, network: Network, inputs: Tensor, targets: Tensor) -> Tensor:
        forward = network.forward_weights()
        if forward is None:
            outputs = self.model(inputs)
        else:
            outputs = functional_call(self.model, dict(forward), (inputs,))
        return user_losses(self.loss, outputs, targets, users=1).sum()

    def _buffers(self, network: Network) -> dict[str, Tensor]:
        """Copies of the network's buffers."""
        names = (name for name, _ in self.model.named_buffers() if name in network.leaves)
        return {name: network.leaves[name].clone() for name in names}
