"""Who computes a round: an engine turns a plan into a step; here, the loop engine, the oracle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from salf.core.aggregate import Changing, Held, LayerwiseAggregate, PerLayer, Step, UserId
from salf.core.arrivals import Ints
from salf.core.draws import Keyed
from salf.core.layers import Layers, backward_to, is_sent
from salf.core.local import Local, Passed, changed, local_update
from salf.core.narrow import SubNetwork, subnetwork
from salf.core.rules import LocalRule, State, Tensors
from salf.core.server import Schedule
from salf.engines.losses import Loss, cross_entropy, user_losses
from salf.methods import Group, RoundPlan

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
class LocalSteps:
    """How the users of a round take their local steps."""

    rate: Schedule  # on the model of a round
    rule: LocalRule | None = None
    server: State = field(default_factory=dict)  # what the rule is given of the server
    own: Callable[[int], State] = lambda user: {}  # and of a user
    draws: Keyed | None = None  # what PyTorch draws for a user (dropout) is keyed by these


ONE_STEP = LocalSteps(lambda t: 0.0)


@dataclass
class Network:
    """What one group computes on: its tensors, and whether they are not the module's own."""

    leaves: Weights
    foreign: bool = False
    narrow: SubNetwork | None = None
    rate: float = 0.0  # of its users' own steps
    local: LocalSteps = ONE_STEP

    @property
    def held(self) -> Held | None:
        """Where a narrow network's entries lie in the full tensors."""
        return None if self.narrow is None else self.narrow.held

    def forward_weights(self) -> Weights | None:
        """What one forward pass is to use; None for the module's own tensors."""
        if self.narrow is not None:
            return self.narrow.forward_view(self.leaves)
        return self.leaves if self.foreign else None

    def moved_by(self, gradients: Weights, rate: float) -> "Network":
        """The network after a user's own step."""
        moved = {
            name: torch.sub(self.leaves[name].detach(), gradient, alpha=rate).requires_grad_()
            for name, gradient in gradients.items()
        }
        return replace(self, leaves={**self.leaves, **moved}, foreign=True)


class Engine:
    """Computes plans on one model. The model's own tensors are this round's weights.

    By default users are computed one at a time.
    """

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
        plan: RoundPlan,
        t: int,
        old: Mapping[int, Weights],
        rows: Rows,
        local: LocalSteps = ONE_STEP,
        aggregate: LayerwiseAggregate | None = None,
    ) -> RoundResult:
        """Compute round t. `old` holds the weights of earlier rounds that the plan still uses.

        More than one local step needs to know how they are taken. The updates go into the
        `aggregate`, by default a new one that adds them up.
        """
        if not self.model.training:
            self.model.train()
        if aggregate is None:
            aggregate = LayerwiseAggregate(self.layers, self.weights)
        if local.rule is not None and not self.local_steps:
            aggregate = by_rule(aggregate, local, self.weights, t)
            local = replace(local, rule=None)
        loss, users = 0.0, 0
        computing = (group for group in plan.groups if len(group.users))
        for (given, _), alike in groupby(computing, lambda group: (group.given, group.width)):
            groups = list(alike)
            weights = self.weights if given == t else old[given]
            network = self._network(plan, groups[0], weights, local)
            if aggregate.separate:
                loss += sum(self._separately(each, network, rows, aggregate) for each in groups)
            else:
                loss += self._compute_together(groups, network, rows, aggregate)
            users += sum(len(group.users) for group in groups)
        step = (
            aggregate.average() if plan.narrow.entrywise else aggregate.total(plan.total_weights())
        )
        mean_loss = loss / users if users else float("nan")
        return RoundResult(step, mean_loss, tuple(aggregate.reached.tolist()))

    def predict(self, inputs: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        if self.model.training:
            self.model.eval()
        with torch.inference_mode():
            return self._forward(inputs)

    def _forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)  # type: ignore[no-any-return]

    def _compute_together(
        self,
        groups: Sequence[Group],
        network: Network,
        rows: Rows,
        aggregate: LayerwiseAggregate,
    ) -> float:
        """Add the updates of groups that have one network; return the sum of the users' losses.

        A user's loss is the mean over its local steps.
        """
        return sum(self._compute(group, network, rows, aggregate) for group in groups)

    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add the updates of one group; return the sum of its users' losses."""
        return self._separately(group, network, rows, aggregate)

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
        device = _ToDepth(self, user, steps, depth, network, rows)
        steps_of = network.local
        if steps_of.draws is not None:
            torch.default_generator.manual_seed(steps_of.draws.torch_seed_of(int(user[0])))
        local = Local(network.rate, steps_of.rule, steps_of.server, steps_of.own(int(user[0])))
        try:
            done = local_update(device, self.layers, steps, local)
        finally:
            device.put_back()
        return done.tensors, done.loss

    def _loss(self, network: Network, inputs: Tensor, targets: Tensor) -> Tensor:
        forward = network.forward_weights()
        if forward is None:
            outputs = self.model(inputs)
        else:
            outputs = functional_call(self.model, dict(forward), (inputs,))
        return user_losses(self.loss, outputs, targets, users=1).sum()

    def _network(
        self, plan: RoundPlan, group: Group, weights: Weights, local: LocalSteps
    ) -> Network:
        rate = local.rate(group.given)
        if group.width == 1:
            return Network(weights, weights is not self.weights, None, rate, local)
        narrow, shift = self._narrow.get(group.width), plan.narrow.shift
        if narrow is None or shift:
            narrow = subnetwork(self.model, group.width, shift)
        if not shift:
            self._narrow[group.width] = narrow
        return Network(narrow.leaves(weights), True, narrow, rate, local)


class LoopEngine(Engine):
    """One user at a time, any module. Slow, obvious, and the oracle."""

    name = "loop"
    local_steps = True


def by_rule(
    inner: LayerwiseAggregate, local: LocalSteps, weights: Weights, t: int
) -> LayerwiseAggregate:
    """Apply a local rule to the one step of every user, computed by an engine without rules."""
    rate = local.rate(t)

    def change(update: Tensors, _: PerLayer | None, user: UserId) -> Tensors:
        gradients = {n: value for n, value in update.items() if weights[n].requires_grad}
        one = Local(rate, local.rule, local.server, local.own(int(user)))
        return {**update, **changed(one, 1, gradients, {})}

    return Changing(inner, change)


class _ToDepth:
    """A user on the loop engine, whose last step stops at a depth that is known."""

    def __init__(
        self, engine: Engine, user: Ints, steps: int, depth: int, network: Network, rows: Rows
    ) -> None:
        self._engine, self._user, self._rows = engine, user, rows
        self._steps, self._depth = steps, depth
        self._network = network
        # A forward pass moves running statistics: the model is put back for the next user.
        names = (name for name, _ in engine.model.named_buffers() if name in network.leaves)
        self._before = {name: network.leaves[name].clone() for name in names}

    def backward(self, step: int) -> Passed:
        depth = self._depth if step == self._steps else 1
        loss = self._engine._loss(self._network, *self._rows(self._user, step))
        gradients = backward_to(depth, loss, self._network.leaves, self._engine.layers)
        return Passed(depth, gradients, loss.item())

    def move(self, gradients: Weights, rate: float) -> None:
        self._network = self._network.moved_by(gradients, rate)

    def buffers(self) -> dict[str, Tensor]:
        if self._network.narrow is not None:  # whose statistics are of other activations
            return {}
        leaves = self._network.leaves
        return {n: leaves[n].clone() for n in self._before if is_sent(leaves[n], False)}

    def put_back(self) -> None:
        for name, start in self._before.items():
            self._network.leaves[name].copy_(start)
