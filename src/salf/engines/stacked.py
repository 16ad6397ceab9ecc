"""The stacked engine: the local steps of many users at once, each with weights of its own.

After its first local step every user has other weights, so the users' rows cannot share a pass as
in the fused engine. Here the weights themselves are stacked, [users, ...], and `torch.vmap` runs
the model on all of them: a linear layer becomes one batched matrix product. Users are sorted by
their number of steps, so those still at work are the first of the stack.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from salf.common.errors import SalfError, in_one_line
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Ints
from salf.core.draws import Keyed
from salf.core.inputs import unchanged
from salf.core.layers import Layers
from salf.core.narrow import CONVOLUTIONS
from salf.core.rules import LocalStep
from salf.engines.base import Engine, Network, Rows, Weights
from salf.engines.blocks import saved_bytes
from salf.engines.calls import FasterCalls
from salf.engines.dropout import Dropout
from salf.engines.losses import Loss, cross_entropy, user_losses, value_of
from salf.engines.mixing import same
from salf.methods import Group

# How many bytes of weights, gradients and activations a stack may have; more users are worked off
# in chunks. (Measured: benchmarks/local_steps.py.)
CHUNK_BYTES = 64 * 2**20
# What a pass of convolutions may save for each row; with more, users take long enough alone.
MOST_ROW_BYTES = 2**17
LEAST_TOGETHER = 15  # users of convolutions; with fewer, operations take too long to start
COPIES = 3  # of a user's weights: the weights, their gradients, and the sum of these

RANDOM = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def obstacle(model: nn.Module, example: Tensor | None) -> str | None:
    """Why users' local steps cannot be stacked, or not faster; None if a trial of it works."""
    if (reason := unsuited(model)) is not None:
        return reason
    if example is None:
        return "there are no example inputs to try the model on"
    convolutions = [each for each in model.named_modules() if isinstance(each[1], CONVOLUTIONS)]
    for name, module in convolutions:  # vmap makes it a grouped one, which is slower
        if type(module) is not nn.Conv2d or isinstance(module.padding, str):
            return f"local steps of convolutions ({name}) are not faster together"
    weights = {n: p.detach() for n, p in model.named_parameters()}
    draws, users = Keyed(0, 1), np.arange(2)
    try:
        with unchanged(model):
            model.train()
            stack = {name: each.expand(2, *each.shape) for name, each in weights.items()}
            run = torch.vmap(lambda own, rows: functional_call(model, own, (rows,)))
            with FasterCalls(model), Dropout(draws, users):
                together = run(stack, torch.stack([example, example]))
            each = []
            for user in users:
                with Dropout(draws, users[user : user + 1]):
                    each.append(model(example).detach())
            alone = torch.stack(each)
            row_bytes = saved_bytes(lambda: model(example), weights) // len(example)
    except Exception as error:  # whatever somebody else's code raises under vmap
        cause = in_one_line(error)
        return f"{type(model).__name__} cannot run with stacked weights ({cause})"
    if not same(together, alone):
        return f"{type(model).__name__} gives other outputs with stacked weights"
    if convolutions and row_bytes > MOST_ROW_BYTES:
        return f"convolutions of {row_bytes >> 10} KiB a row are not faster together"
    return None


def unsuited(model: nn.Module) -> str | None:
    """What in a model does not go with stacked weights, if anything is known."""
    for name, module in model.named_modules():
        if isinstance(module, RANDOM):
            return f"{name} ({type(module).__name__}) draws random numbers"
    for name, _ in model.named_buffers():
        return f"the forward pass may change the buffer {name}"
    return None


class StackedEngine(Engine):
    """All users of a group together, step by step; equal to the loop engine to rounding."""

    name = "stacked"
    local_steps = True

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        loss: Loss = cross_entropy,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        super().__init__(model, layers, loss)
        if (reason := unsuited(model)) is not None:
            raise SalfError(
                f"the stacked engine cannot run this model: {reason}. Use engine 'loop'."
            )
        names = (name for layer in layers for name in layer.parameters)
        self._trained = [name for name in names if self.weights[name].requires_grad]
        self.chunk_bytes = chunk_bytes
        self._user_bytes: int | None = None

    def _separately(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        if aggregate.separate:  # users by themselves are not computed together in pieces
            return self.computed(group, network, rows, aggregate)
        return super()._separately(group, network, rows, aggregate)

    def pieces(self, group: Group, rows: Rows, alone: bool) -> list[Ints]:
        order, most = np.argsort(-group.steps, kind="stable"), self._users_per_chunk(group, rows)
        pieces = -(-len(order) // most)
        if any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            # Which take so long that more users in a piece gain less than another process does.
            pieces = max(pieces, min(4, len(order) // LEAST_TOGETHER))
        return np.array_split(order, pieces)

    def computed(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        total = 0.0
        for columns in self.pieces(group, rows, aggregate.separate):
            some = group.of_columns(columns)
            self.begin(network.draws, some.users)
            sums, losses = self._local_steps(some.users, some.gradients, network, rows)
            if aggregate.separate:
                self._add_each(some, sums, network, aggregate)
            else:
                c, scale = some.weights, some.weights.max(axis=1)
                shares = c / np.where(scale > 0, scale, 1.0)[:, None]
                update = {
                    name: torch.tensordot(each.new_tensor(shares[index]), each, 1)
                    for name, each in sums.items()
                    if scale[index := self.layers.index_of[name]]
                }
                totals = (c > 0).sum(axis=1), c.sum(axis=1)
                aggregate.add_sum(update, scale, *totals, held=network.held)
            total += losses
        return total

    def _add_each(
        self, group: Group, sums: Weights, network: Network, aggregate: LayerwiseAggregate
    ) -> None:
        """Add every user's update by itself."""
        for column, user in enumerate(group.users.tolist()):
            update = {
                name: each[column]
                for name, each in sums.items()
                if group.gradients[self.layers.index_of[name], column]
            }
            aggregate.add(update, group.weights[:, column], held=network.held, user=user)

    def _users_per_chunk(self, group: Group, rows: Rows) -> int:
        """Measured on the full network whatever the group's is, as in the fused engine."""
        if self._user_bytes is None:
            inputs, _ = rows(group.users[:1])
            stack = {n: w.clone().requires_grad_() for n, w in self.stack(self.weights, 1).items()}
            network = Network(self.weights)
            self.begin(Keyed(0, 0), group.users[:1])
            saved = saved_bytes(lambda: self.outputs(network, stack, inputs[None]), stack)
            self._user_bytes = saved + COPIES * sum(weight.nbytes for weight in stack.values())
        return max(1, self.chunk_bytes // self._user_bytes)

    def _local_steps(
        self, users: Ints, counts: Ints, network: Network, rows: Rows
    ) -> tuple[dict[str, Tensor], float]:
        """Every user's sum of gradients, stacked, and the sum of the users' mean losses.

        `counts` are the gradients each user has of each layer; users are sorted by steps.
        """
        steps = counts.max(axis=0)
        own: dict[str, Tensor] = {name: network.leaves[name].detach() for name in self._trained}
        sums: dict[str, Tensor] = {}
        total = 0.0
        for step in range(1, steps[0] + 1):
            active, going_on = int((steps >= step).sum()), int((steps > step).sum())
            stack = self.stack(own, active) if step == 1 else own
            gradients, losses = self._gradients(users[:active], step, network, stack, rows)
            total += value_of((losses / losses.new_tensor(steps[:active])).sum())
            changed = self._by_rule(users[:active], step, gradients, sums, network)
            for name, gradient in changed.items():
                part = gradient[:going_on]
                if step == 1:
                    own[name] = torch.sub(own[name], part, alpha=network.local.rate)
                else:
                    own[name] = own[name][:going_on].sub_(part, alpha=network.local.rate)
                # Users whose last step stopped above this layer do not have its gradient.
                stopped = np.flatnonzero(counts[self.layers.index_of[name], :active] < step)
                if len(stopped):
                    gradient[torch.from_numpy(stopped).to(gradient.device)] = 0
                if step == 1:
                    sums[name] = gradient
                else:
                    sums[name][:active].add_(gradient)
        return sums, total

    def _by_rule(
        self, users: Ints, step: int, gradients: Weights, sums: Weights, network: Network
    ) -> Weights:
        """The gradients as the local rule changes them."""
        local = network.local
        if local.rule is None:
            return gradients
        total = sums or {name: torch.zeros_like(each) for name, each in gradients.items()}
        total = {name: each[: len(users)] for name, each in total.items()}
        each = [network.own(user) for user in users.tolist()]
        own = {name: torch.stack([state[name] for state in each]) for name in each[0]}
        of_step = LocalStep(step, network.local.rate, total, local.server, own)
        return local.rule.of_many(gradients, of_step)

    def _gradients(
        self, users: Ints, step: int, network: Network, stack: Weights, rows: Rows
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One local step: the gradients of users with these weights, stacked, and their losses."""
        sizes = rows.sizes(users, step)
        if (sizes == sizes[0]).all():
            return self._one_pass(network, stack, range(len(users)), *rows(users, step))
        gradients = {name: torch.empty_like(weight) for name, weight in stack.items()}
        losses = next(iter(stack.values())).new_empty(len(users))
        for size in np.unique(sizes):
            some = np.flatnonzero(sizes == size)
            at = torch.from_numpy(some).to(losses.device)
            own = {name: weight[at] for name, weight in stack.items()}
            part, losses[at] = self._one_pass(network, own, some.tolist(), *rows(users[some], step))
            for name, gradient in part.items():
                gradients[name][at] = gradient
        return gradients, losses

    def _one_pass(
        self,
        network: Network,
        stack: Weights,
        places: Sequence[int],
        inputs: Tensor,
        targets: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One pass for users with equally many rows, who are at these places of their chunk."""
        if self.dropout is not None:
            self.dropout.places = places
        leaves = {name: weight.detach().requires_grad_() for name, weight in stack.items()}
        users = len(next(iter(leaves.values())))
        outputs = self.outputs(network, leaves, inputs.view(users, -1, *inputs.shape[1:]))
        losses = user_losses(self.loss, outputs.flatten(0, 1), targets, users)
        gradients = torch.autograd.grad(
            losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(leaves, gradients, strict=True)), losses.detach()

    def outputs(self, network: Network, stack: Weights, inputs: Tensor) -> Tensor:
        """What the model makes of the inputs of users who have the stacked weights."""
        fixed = {name: leaf for name, leaf in network.leaves.items() if name not in stack}

        def one_user(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
            own = {**fixed, **weights}
            forward = own if network.narrow is None else network.narrow.forward_view(own)
            return functional_call(self.model, forward, (rows,))  # type: ignore[no-any-return]

        with self.faster(), self.dropping():
            return torch.vmap(one_user)(dict(stack), inputs)

    def stack(self, weights: Weights, users: int) -> dict[str, Tensor]:
        """Copies of the weights, one for every user."""
        return {n: weights[n].detach().expand(users, *weights[n].shape) for n in self._trained}
