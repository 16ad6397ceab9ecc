"""Engines that run a model's blocks on the rows of many users at once; here, the grouped one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from salf.common.errors import SalfError
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Floats, Ints
from salf.core.layers import Layers, backward_to
from salf.core.narrow import BATCH_NORMS
from salf.engines.base import Engine, Network, Rows, Weights
from salf.engines.kernels import UserBatchNorm
from salf.engines.losses import Loss, cross_entropy, total_and_objective, value_of
from salf.methods import Group

# How many bytes one pass may save for its backward pass; more users are worked off in chunks. Small
# enough for memory to be reused, but some times the parameters, whose gradients every pass has to
# add up. (Measured: benchmarks/engines.py.)
CHUNK_BYTES = 64 * 2**20
CHUNK_PER_PARAMETER_BYTE = 4


def of_users(module: nn.Module) -> nn.Module:
    """The module to run in place of this one on the rows of many users."""
    return UserBatchNorm(module) if type(module) in BATCH_NORMS else module  # type: ignore[arg-type]


Place = tuple[dict[str, nn.Module | None], str, nn.Module, nn.Module]


def stand_ins_inside(modules: Iterable[nn.Module]) -> Iterator[Place]:
    """(the children of a module, a child's name, the child, what stands in for it)."""
    others: dict[int, nn.Module] = {}  # one for every module, however many places it has
    for parent in (parent for outer in modules for parent in outer.modules()):
        if isinstance(parent, torch.jit.ScriptModule):  # its children cannot be replaced
            continue
        for name, child in parent._modules.items():
            if child is not None:
                other = others.setdefault(id(child), of_users(child))
                if other is not child:
                    yield parent._modules, name, child, other


@contextmanager
def stood_in(places: Iterable[Place]) -> Iterator[None]:
    """Let stand-ins be in the model for a time."""
    for children, name, _, other in places:
        children[name] = other
    try:
        yield
    finally:
        for children, name, own, _ in places:
            children[name] = own


class LayerBlock:
    """Modules run one after the other, with batch norm at any depth inside them per user.

    The stand-ins take their places in the model for the time of a pass only.
    """

    def __init__(self, modules: Sequence[nn.Module], weights: Weights) -> None:
        self.sequence = nn.Sequential(*map(of_users, modules))
        self._modules = tuple(self.sequence)
        self.last = type(modules[-1]).__name__
        self._inside = list(stand_ins_inside(modules))
        full_name = {id(tensor): name for name, tensor in weights.items()}
        with stood_in(self._inside):
            tensors = (*self.sequence.named_parameters(), *self.sequence.named_buffers())
            self._names = {name: full_name[id(tensor)] for name, tensor in tensors}
            self.norms = {
                name: module
                for name, module in self.sequence.named_modules()
                if isinstance(module, UserBatchNorm)
            }

    def __call__(self, inputs: Tensor, users: int, weights: Weights | None = None) -> Tensor:
        """The outputs for the rows of `users` users; `weights` replace the model's own."""
        for norm in self.norms.values():
            norm.users = users
            if torch.is_grad_enabled():
                norm.moved = {}
        if weights is None and not self._inside:
            for module in self._modules:  # without a call of the sequence: small models feel it
                inputs = module(inputs)
            return inputs
        with stood_in(self._inside):
            if weights is None:
                return self.sequence(inputs)  # type: ignore[no-any-return]
            own = {name: weights[full] for name, full in self._names.items() if full in weights}
            return functional_call(self.sequence, own, (inputs,))  # type: ignore[no-any-return]

    def moved(self, factors: Floats) -> dict[str, Tensor]:
        """How the last pass with a graph moved running statistics, each user's times its factor."""
        update: dict[str, Tensor] = {}
        for place, norm in self.norms.items():
            for name, moved in norm.moved.items():
                if moved.dtype.is_floating_point:
                    moved = moved.new_tensor(factors[: len(moved)]) @ moved
                update[self._names[f"{place}.norm.{name}"]] = moved
        return update


class Signals:
    """What backpropagation carries for some users, sorted by depth, whose weights are c[l, u].

    Through layer l, user u's rows carry `of[l, u]` = c[l, u] / s_l; the gradient is multiplied by
    s_l, the `scale`, afterwards.
    """

    def __init__(self, c: Floats) -> None:
        self.users = c.shape[1]
        reach = c > 0
        self.reached: list[int] = reach.sum(1).tolist()  # U^l is the first reached[l] users
        counted = np.flatnonzero(self.reached)
        self.depth = 1 + int(counted[0]) if len(counted) else len(c) + 1  # of who got furthest
        self.scale, self.total = c.max(1), c.sum(1)
        self.of = c / np.where(self.scale > 0, self.scale, 1.0)[:, None]
        self.factors = self.of[counted[-1] if len(counted) else -1]  # of the users' losses
        self.all_ones = bool((self.of == reach).all())  # then no signal has to be scaled

    def ratio(self, index: int) -> Floats:
        """What the signal is multiplied by at the boundary below a layer, for users below it."""
        users = self.reached[index - 1]
        return np.asarray(self.of[index - 1, :users] / self.of[index, :users])


@lru_cache(maxsize=8)
def signals_of(layers: int, c: bytes) -> Signals:
    """Signals for weights c[l, u], which are often the same round after round."""
    return Signals(np.frombuffer(c).reshape(layers, -1))


class BlockEngine(Engine):
    """What engines that run a model's blocks on the rows of many users have in common."""

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        loss: Loss = cross_entropy,
        chunk_bytes: int | None = None,
    ) -> None:
        super().__init__(model, layers, loss)
        self._blocks = [LayerBlock(modules, self.weights) for modules in self._modules()]
        self._parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self.chunk_bytes = chunk_bytes or max(
            self._least_chunk_bytes(), CHUNK_PER_PARAMETER_BYTE * self._parameter_bytes
        )
        self._user_bytes: dict[int, int] = {}  # by the number of rows

    def outputs(self, inputs: Tensor, users: int) -> Tensor:
        """What the model, in training, makes of the rows of several users."""
        for block in self._blocks:
            rows, inputs = len(inputs), block(inputs, users)
            if not isinstance(inputs, Tensor) or inputs.shape[:1] != (rows,):
                raise self._refusal(f"{block.last} does not return one tensor with a row per row")
        return inputs

    def _modules(self) -> Sequence[Sequence[nn.Module]]:
        """The modules of each block, in the order in which they run."""
        return [[self.model]]

    def _sets(self, weights: Floats) -> Iterable[Ints]:
        """The columns of c[l, u] that one pass may take together, in order."""
        raise NotImplementedError

    def _outputs(self, signals: Signals, forward: Weights | None, inputs: Tensor) -> Tensor:
        """What the model makes of the rows of users, with a graph for what they reached."""
        raise NotImplementedError

    def _one_pass(
        self,
        users: Ints,
        c: Floats,
        network: Network,
        batch: tuple[Tensor, Tensor],
        aggregate: LayerwiseAggregate,
    ) -> float:
        """Add the updates of some users of one set; return their losses."""
        signals, (inputs, targets) = signals_of(len(c), c.tobytes()), batch
        self.begin(network.draws, users)
        with self.faster(), self.dropping():
            outputs = self._outputs(signals, network.forward_weights(), inputs)
        total, objective = total_and_objective(self.loss, outputs, targets, signals.factors)
        update = backward_to(signals.depth, objective, network.leaves, self.layers)
        if network.narrow is None and self._has_norms:
            update |= self._moved_statistics(signals)
        totals = signals.reached, signals.total
        aggregate.add_sum(update, signals.scale, *totals, network.held)
        return value_of(total)

    @cached_property
    def _has_norms(self) -> bool:
        return any(block.norms for block in self._blocks)

    def _moved_statistics(self, signals: Signals) -> dict[str, Tensor]:
        """How the users that reached a layer moved its running statistics, weighed like it."""
        update: dict[str, Tensor] = {}
        for block, reached, factors in zip(self._blocks, signals.reached, signals.of, strict=False):
            if reached:
                update |= block.moved(factors)
        return {name: moved for name, moved in update.items() if name in self.layers.index_of}

    def _compute_together(
        self,
        groups: Sequence[Group],
        network: Network,
        rows: Rows,
        aggregate: LayerwiseAggregate,
    ) -> float:
        total = 0.0
        for group in groups:
            most = self._users_per_chunk(group, rows)
            for columns in self._sets(group.weights):
                for start in range(0, len(columns), most):
                    some = columns[start : start + most]
                    users, c = group.users[some], group.weights[:, some]
                    total += self._one_pass(users, c, network, rows(users), aggregate)
        return total

    def _refusal(self, reason: str) -> SalfError:
        return SalfError(
            f"the {self.name} engine cannot run this model: {reason}. Use engine 'loop'."
        )

    def _users_per_chunk(self, group: Group, rows: Rows) -> int:
        """As many users as keep the activations of one pass within `chunk_bytes`.

        Measured on the full network whatever the group's is, so that a run that is resumed works
        in the same chunks as one that never stopped.
        """
        if group.rows not in self._user_bytes:
            inputs, _ = rows(group.users[:1])
            before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            # Dropout's masks must not depend on whether this was measured before.
            with torch.random.fork_rng(devices=[]):
                self._user_bytes[group.rows] = self._activation_bytes(inputs)
            for name, buffer in self.model.named_buffers():
                if not torch.equal(buffer, before[name]):
                    raise self._refusal(f"its forward pass changes the buffer {name}")
        return max(1, self.chunk_bytes // max(1, self._user_bytes[group.rows]))

    def _least_chunk_bytes(self) -> int:
        return CHUNK_BYTES

    def _activation_bytes(self, inputs: Tensor) -> int:
        return saved_bytes(lambda: self.outputs(inputs, 1), self.weights)


class GroupedEngine(BlockEngine):
    """Any module, one pass over all users whose gradients are weighed alike.

    Users whose columns c[:, u] are equal up to a factor reached the same layers, so their part of
    the step is one backward pass of the sum of their losses, each times its factor, that stops at
    their depth. For the paper's methods that is one pass for each depth.
    """

    name = "grouped"

    def _sets(self, weights: Floats) -> list[Ints]:
        """Columns that are equal up to a factor."""
        shapes = np.round(weights / weights.max(axis=0), 12)
        _, which = np.unique(shapes, axis=1, return_inverse=True)
        return [np.flatnonzero(which == each) for each in range(which.max() + 1)]

    def _outputs(self, signals: Signals, forward: Weights | None, inputs: Tensor) -> Tensor:
        return self._blocks[0](inputs, signals.users, forward)

    def _moved_statistics(self, signals: Signals) -> dict[str, Tensor]:
        moved = self._blocks[0].moved(signals.factors)
        return {name: value for name, value in moved.items() if name in self.layers.index_of}


def saved_bytes(forward: Callable[[], Tensor], weights: Weights) -> int:
    """What a forward pass saves for its backward pass, without the model's own tensors."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = forward()  # held, so that no address is used twice
    for tensor in weights.values():
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    del outputs
    return sum(sizes.values())
