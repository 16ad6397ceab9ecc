"""Who computes a round: an engine turns a plan into a step; here, the loop engine, the oracle."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy as np
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
from salf.engines.calls import FasterCalls
from salf.engines.dropout import DROPOUT, Dropout, seed_torch
from salf.engines.losses import Loss, cross_entropy, user_losses, value_of
from salf.methods import Group, RoundPlan

if TYPE_CHECKING:
    from salf.engines.spread import Crew

Weights = Mapping[str, Tensor]
PIECES = 32  # in which the users of a group are added up, so that one sum is for many
LARGEST = 32  # users of a piece: so a large round has work for hundreds of cores


class Rows(Protocol):
    """The mini-batches of a round."""

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        """The rows of some users in a local step (1..K), one user after the other."""

    def sizes(self, users: Ints, step: int = 1) -> Ints:
        """How many rows each of these users has in a local step."""


RowsOf = Callable[[Keyed, Ints], Rows]  # the rows of some users in a round


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


News = tuple[Local, Keyed | None, SubNetwork | None]


@dataclass(frozen=True)
class Network:
    """What one group computes on, and how its users step."""

    leaves: Weights
    local: Local = field(default_factory=Local)
    own: Callable[[int], State] = lambda user: {}
    draws: Keyed | None = None
    narrow: SubNetwork | None = None

    @classmethod
    def of(cls, weights: Weights, news: News) -> "Network":
        """The network of another process that has these weights, too."""
        local, draws, narrow = news
        return cls(weights, local, draws=draws).cut(narrow)

    @property
    def news(self) -> News:
        """What another process needs to know of it, beside weights and users' states."""
        return self.local, self.draws, self.narrow

    @property
    def held(self) -> Held | None:
        """Where a narrow network's entries lie in the full tensors."""
        return None if self.narrow is None else self.narrow.held

    def cut(self, narrow: SubNetwork | None) -> "Network":
        """A narrow network cut out of this one, or this one."""
        if narrow is None:
            return self
        return replace(self, leaves=narrow.leaves(self.leaves), narrow=narrow)

    def forward_weights(self) -> Weights | None:
        """What one forward pass is to use; None for the module's own tensors."""
        return None if self.narrow is None else self.narrow.forward_view(self.leaves)


class Engine:
    """Computes plans on one model. The model's own tensors are this round's weights.

    By default users are computed one at a time.
    """

    name: str  # that of the class in lower case, unless it says otherwise
    why = "requested"  # the reason for choosing this engine
    local_steps = False  # whether it can compute more than one local step
    fast = True  # whether its passes use faster kernels than PyTorch's own

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__.lower()

    def __init__(self, model: nn.Module, layers: Layers, loss: Loss = cross_entropy) -> None:
        self.model = model
        self.layers = layers
        self.loss = loss
        # The rows of any users: given, processes may share the users computed one at a time. They
        # are so many or, if 0, one for each thread once it pays.
        self.rows_of: RowsOf | None = None
        self.workers = 0
        self.crew: Crew | None = None
        self.dropout: Dropout | None = None  # of the users of this pass
        self._may_drop = may_drop(model)
        self._subnetwork = lru_cache(maxsize=32)(partial(subnetwork, model))

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The model's own parameters and buffers, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @cached_property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((tensor.device for tensor in self.weights.values()), torch.device("cpu"))

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
            with nullcontext() if given == t else placed(self.weights, old[given]):
                network = self._network(plan, groups[0], local)
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
        with torch.inference_mode(), self.faster():
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
        return sum(self._separately(group, network, rows, aggregate) for group in groups)

    def _separately(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add every user's own update by itself, or in pieces; return the sum of their losses."""
        if self.rows_of is None or len(group.users) < 2:
            return self.computed(group, network, rows, aggregate)
        from salf.engines.spread import Crew  # which imports this module

        self.crew = self.crew or Crew(self)
        return self.crew.compute(self, group, network, rows, aggregate)

    def pieces(self, group: Group, rows: Rows, alone: bool) -> list[Ints]:
        """The columns of a group's users that are added up before others are, or each `alone`."""
        users = len(group.users)
        size = 1 if alone else min(-(-users // PIECES), LARGEST)
        return [np.arange(at, min(at + size, users)) for at in range(0, users, size)]

    def computed(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        """Add the updates of some users in this process; return the sum of their losses.

        By default one user after the other: its local steps, the last one to its depth.
        """
        total = 0.0
        for column, (steps, depth) in enumerate(zip(group.steps, group.depth, strict=True)):
            user = group.users[column : column + 1]
            update, loss = self.user(user, int(steps), int(depth), network, rows)
            c, number = group.weights[:, column], int(user[0])
            aggregate.add(update, c, held=network.held, user=number)
            total += loss
        return total

    def user(
        self, user: Ints, steps: int, depth: int, network: Network, rows: Rows
    ) -> tuple[dict[str, Tensor], float]:
        """A user's update, the sum of its gradients, and its mean loss."""
        number = int(user[0])
        if network.draws is not None:
            seed_torch(network.draws.torch_seed_of(number), self.device)
        local = replace(network.local, own=network.own(number))
        self.begin(network.draws, user)
        with placed(network.leaves):
            device = _ToDepth(self, user, steps, depth, network, rows)
            done = local_update(device, self.layers, steps, local)
        return done.tensors, done.loss

    def begin(self, draws: Keyed | None, users: Ints) -> None:
        """Dropout, if there is any, is that of these users in the passes to come."""
        self.dropout = Dropout(draws, users) if self._may_drop and draws is not None else None

    def dropping(self) -> AbstractContextManager[object]:
        """A forward pass with dropout as it is begun."""
        return self.dropout or nullcontext()

    def faster(self) -> AbstractContextManager[object]:
        """A forward pass on any engine but the loop, unless that was chosen as the fastest."""
        return self._calls if self.fast or self.rows_of is not None else nullcontext()

    @cached_property
    def _calls(self) -> FasterCalls:
        return FasterCalls(self.model)

    def loss_of(self, network: Network, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one user."""
        forward = network.forward_weights()
        with self.faster(), self.dropping():
            if forward is None:
                outputs = self.model(inputs)
            else:
                outputs = functional_call(self.model, dict(forward), (inputs,))
        return user_losses(self.loss, outputs, targets, users=1).sum()

    def _network(self, plan: RoundPlan, group: Group, local: LocalSteps) -> Network:
        steps = Local(local.rate(group.given), local.rule, local.server)
        network = Network(self.weights, steps, local.own, local.draws)
        whole = group.width == 1
        return network.cut(None if whole else self._subnetwork(group.width, plan.narrow.shift))


def may_drop(model: nn.Module) -> bool:
    """Whether a pass may use dropout: modules of PyTorch's own do not, unless they are dropout."""
    return any(
        isinstance(module, DROPOUT) or not type(module).__module__.startswith("torch.nn.")
        for module in model.modules()
    )


class LoopEngine(Engine):
    """One user at a time, any module. Slow, obvious, and the oracle."""

    name = "loop"
    local_steps = True
    fast = False


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
    """A user on the loop engine, whose last step stops at a depth that is known.

    It moves the network's own leaves, which are placed elsewhere for the time.
    """

    def __init__(
        self, engine: Engine, user: Ints, steps: int, depth: int, network: Network, rows: Rows
    ) -> None:
        self._engine, self._user, self._rows = engine, user, rows
        self._steps, self._depth = steps, depth
        self._network, self._moved = network, set[str]()
        names = (name for name, _ in engine.model.named_buffers() if name in network.leaves)
        self._buffers = {name: network.leaves[name] for name in names}
        for buffer in self._buffers.values():  # which a forward pass may change
            buffer.data = buffer.data.clone()

    def backward(self, step: int) -> Passed:
        depth = self._depth if step == self._steps else 1
        loss = self._engine.loss_of(self._network, *self._rows(self._user, step))
        gradients = backward_to(depth, loss, self._network.leaves, self._engine.layers)
        return Passed(depth, gradients, value_of(loss))

    def move(self, gradients: Weights, rate: float) -> None:
        for name, gradient in gradients.items():
            leaf = self._network.leaves[name]
            if name in self._moved:
                leaf.data.sub_(gradient, alpha=rate)
            else:
                leaf.data = torch.sub(leaf.data, gradient, alpha=rate)
        self._moved.update(gradients)

    def buffers(self) -> dict[str, Tensor]:
        if self._network.narrow is not None:  # whose statistics are of other activations
            return {}
        own = self._buffers.items()
        return {name: value.clone() for name, value in own if is_sent(value, False)}


@contextmanager
def placed(tensors: Weights, values: Weights | None = None) -> Iterator[None]:
    """Let tensors have the data of others for a time; afterwards they have their own again."""
    own = {name: tensor.data for name, tensor in tensors.items()}
    try:
        if values is not None:
            for name, tensor in tensors.items():
                tensor.data = values[name].data
        yield
    finally:
        for name, data in own.items():
            tensors[name].data = data
