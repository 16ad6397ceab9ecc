"""Who computes a round: an engine turns a plan into a step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from salf.core.aggregate import Held, LayerwiseAggregate, Step
from salf.core.arrivals import Ints
from salf.core.backprop import backward_to, moved
from salf.core.layers import Layers
from salf.core.narrow import SubNetwork, subnetwork
from salf.core.schedules import Schedule
from salf.engines.losses import Loss, cross_entropy, user_losses
from salf.methods import Group, Plan

Weights = Mapping[str, Tensor]


class Rows(Protocol):
    """The mini-batches of a round."""

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        """The rows of some users in a local step (1..K), one user after the other."""

    def sizes(self, users: Ints, step: int = 1) -> Ints:
        """How many rows each of these users has in a local step."""


@dataclass(frozen=True)
class RoundResult:
    """A round's step, and what it came from."""

    step: Step
    loss: float  # the mean over the users that took part; NaN if none did
    reached: tuple[int, ...]  # how many users' updates each layer got: |U^l| for SALF


@dataclass(frozen=True)
class Network:
    """What one group computes on: its tensors, and whether they are not the module's own."""

    leaves: Weights
    foreign: bool = False
    narrow: SubNetwork | None = None
    rate: float = 0.0  # of its users' own steps
    proximal: float = 0.0  # mu of the term mu (w - w_t) in these steps

    @property
    def held(self) -> Held | None:
        """Where a narrow network's entries lie in the full tensors."""
        return None if self.narrow is None else self.narrow.held

    def forward_weights(self) -> Weights | None:
        """What one forward pass is to use; None for the module's own tensors."""
        if self.narrow is not None:
            return self.narrow.forward_view(self.leaves)
        return self.leaves if self.foreign else None

    def moved_by(self, gradients: Weights) -> "Network":
        """The network after a user's own step."""
        moved = {
            name: torch.sub(self.leaves[name].detach(), gradient, alpha=self.rate).requires_grad_()
            for name, gradient in gradients.items()
        }
        return replace(self, leaves={**self.leaves, **moved}, foreign=True)


class Engine(ABC):
    """Computes plans on one model. The model's own tensors are this round's weights."""

    name: str  # that of the class in lower case, unless it says otherwise
    why = "requested"  # the reason for choosing this engine
    local_steps = False  # whether it can compute more than one local step

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__.lower()

    def __init__(self, model: nn.Module, layers: Layers, loss: Loss = cross_entropy) -> None:
        self.model = model
        self.layers = layers
        self.loss = loss
        self._narrow: dict[float, SubNetwork] = {}

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The model's own parameters and buffers, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def round(
        self,
        plan: Plan,
        t: int,
        old: Mapping[int, Weights],
        rows: Rows,
        local_rate: Schedule | None = None,
        aggregate: LayerwiseAggregate | None = None,
    ) -> RoundResult:
        """Compute round t. `old` holds the weights of earlier rounds that the plan still uses.

        `local_rate` is the rate of users' own steps, which more than one local step needs. The
        updates go into the `aggregate`, by default a new one that adds them up.
        """
        if not self.model.training:
            self.model.train()
        if aggregate is None:
            aggregate = LayerwiseAggregate(self.layers, self.weights)
        loss, users = 0.0, 0
        alike = [group for group in plan.groups if len(group.users)]
        for groups in [[one] for one in alike] if aggregate.separate else self._together(alike):
            given = groups[0].given
            weights = self.weights if given == t else old[given]
            rate = 0.0 if local_rate is None else local_rate(given)
            network = self._network(plan, groups[0], weights, rate)
            if aggregate.separate:
                loss += self._separately(groups[0], network, rows, aggregate)
            else:
                loss += self._compute_together(groups, network, rows, aggregate)
            users += sum(len(group.users) for group in groups)
        step = aggregate.average() if plan.entrywise else aggregate.total(plan.total_weights())
        mean_loss = loss / users if users else float("nan")
        return RoundResult(step, mean_loss, tuple(aggregate.reached.tolist()))

    def predict(self, inputs: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        if self.model.training:
            self.model.eval()
        with torch.inference_mode():
            return self._forward(inputs)

    def settle(self, name: str, why: str) -> None:  # noqa: B027
        """Continue a run that the engine of this name began; most engines have no choice."""

    def _forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)  # type: ignore[no-any-return]

    def _together(self, groups: Sequence[Group]) -> Iterable[Sequence[Group]]:
        """Groups of one network that are computed together."""
        return [[group] for group in groups]

    def _compute_together(
        self,
        groups: Sequence[Group],
        network: Network,
        rows: Rows,
        aggregate: LayerwiseAggregate,
    ) -> float:
        """Add the updates of groups that have one network; return the sum of the users' losses."""
        return sum(self._compute(group, network, rows, aggregate) for group in groups)

    def _separately(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add every user's own update by itself; return the sum of the users' losses.

        By default one user after the other: its local steps, the last one to its depth.
        """
        total = 0.0
        for column, (steps, depth) in enumerate(zip(group.steps, group.depth, strict=True)):
            user = group.users[column : column + 1]
            update, loss = self._user(user, int(steps), int(depth), network, rows)
            aggregate.add(update, group.weights[:, column], held=network.held, user=int(user[0]))
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
            if network.proximal and step > 1:  # w - w_t is -rate times the sum so far
                pull = network.proximal * network.rate
                gradients = {name: g - pull * update[name] for name, g in gradients.items()}
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

    @abstractmethod
    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add the group's updates to the aggregate and return the sum of its users' losses.

        A user's loss is the mean over its local steps.
        """

    def _network(self, plan: Plan, group: Group, weights: Weights, rate: float) -> Network:
        if group.width == 1:
            foreign = weights is not self.weights
            return Network(weights, foreign=foreign, rate=rate, proximal=plan.proximal)
        narrow = self._narrow.get(group.width)
        if narrow is None or plan.shift:
            narrow = subnetwork(self.model, group.width, plan.shift)
        if not plan.shift:
            self._narrow[group.width] = narrow
        return Network(narrow.leaves(weights), True, narrow, rate, plan.proximal)
