"""What the tests compare with: slow, plain, and sharing no code with what it checks."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed, Unkeyed
from salf.core.server import SGD
from salf.data import Partitioned, Samples
from salf.data.sampling import ONE_STEP, Cohort
from salf.engines import ENGINES, cross_entropy
from salf.methods import METHODS, Group, method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import DepthDistribution

# Those that run batch norm and dropout, too; tests/engines/test_local_steps.py has the other one.
ANY_MODEL = [name for name in ENGINES if name != "stacked"]
ANY_WORLD = [name for name, cls in METHODS.items() if not cls().asks.clock]  # also without a fleet


def has_average(name):
    """Whether a method has a choice of what it averages over."""
    return any(each.name == "average" for each in fields(METHODS[name]))


@dataclass(frozen=True)
class Scripted(DepthDistribution):
    """Depths written down round by round, with p_l as told. Depth 1 is a straggler only if so told.

    `stragglers[t - 1]` lists the users who straggle in round t; None means whoever is not at 1.
    """

    rounds: Sequence[Sequence[int]]
    layers: int
    p: Sequence[float] | None = None
    stragglers: Sequence[Sequence[int]] | None = None
    drawn: list[int] = field(default_factory=list)

    @property
    def users(self) -> int:  # type: ignore[override]
        return len(self.rounds[0])

    def draw(self, draws, users, busy=0):
        t = len(self.drawn)
        self.drawn.append(t)
        depth = np.array(self.rounds[t])[users]
        straggler = depth > 1
        if self.stragglers is not None:
            straggler = np.isin(users, self.stragglers[t])
        return Arrivals(depth, straggler, len(users) + busy, user=users)

    def unreached(self, users):
        return np.zeros(self.layers) if self.p is None else np.array(self.p)


def plan_of(name, depths, layers, p=None, t=1, **options):
    """The plan of one round of a method without memory, for depths that are known."""
    made = method(name, **options)
    world = made.world(AtDeadline(Scripted([depths], layers, p)))
    users = np.arange(len(depths))
    arrived, _ = world.arrivals(t, Keyed(0, t), users, world.start())
    chance = np.tile(np.linspace(0.3, 1.0, arrived.users), (layers, 1))
    arrived = replace(arrived, chances=chance, intervals=1 / chance)
    return made.plan(t, arrived, world.unreached(t, users, world.start()))


def draw_all(law, rng, busy=0):
    """One round of a law in which all users but the busy ones take part."""
    return law.draw(Unkeyed(rng), np.arange(law.users - busy), busy)


def unreached(law):
    """p_l when all users take part."""
    return law.unreached(np.arange(law.users))


def group(weights, given):
    """Of a matrix over all users; those with no weight in any layer compute nothing."""
    users = np.flatnonzero(weights.any(axis=0))
    return Group(users, weights[:, users], given)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors(model).items()}


def gradients(model: nn.Module, inputs, targets, loss=cross_entropy, weights=None):
    """All gradients of one user's mean loss, on a copy, and how its buffers moved."""
    twin = deepcopy(model).train()
    if weights is not None:
        twin.load_state_dict(weights)
    before = {name: value.clone() for name, value in twin.named_buffers()}
    twin.zero_grad()
    loss(twin(inputs), targets).mean().backward()
    found = {name: value.grad for name, value in twin.named_parameters()}
    return found | {name: value - before[name] for name, value in twin.named_buffers()}


def rows_of(inputs: Tensor, targets: Tensor, size: int):
    """User u's batch is the u-th run of `size` rows."""

    class Rows:
        def __call__(self, users, step=1):
            index = torch.cat([torch.arange(u * size, (u + 1) * size) for u in users.tolist()])
            return inputs[index], targets[index]

        def sizes(self, users, step=1):
            return np.full(len(users), size)

    return Rows()


def data(users, size, shape, classes=3, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(users * size, *shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (users * size,), generator=generator)
    return inputs.to(dtype), targets


def shape_of(model):
    """The shape of a row, for the small models of nets.py."""
    return (2, 4, 4) if isinstance(model[0], nn.Conv2d) else (4,)


def simulate(
    model,
    name,
    depth,
    samples=None,
    shares=None,
    size=2,
    rate=0.1,
    momentum=0.0,
    batch=2,
    seed=0,
    engine="loop",
    cohort=None,
    by_samples=False,
    options: Mapping[str, object] | None = None,
    local=ONE_STEP,
    **engine_options,
) -> Simulation:
    """By default every user has `size` rows of its own."""
    samples = data(depth.users, size, shape_of(model)) if samples is None else samples
    shares = equal_shares(depth.users, size) if shares is None else shares
    problem = Problem.of(model, Partitioned(Samples(*samples), shares))
    made = ENGINES[engine](model, problem.layers, **engine_options)
    rule = method(name, **(options or {}))
    recipe = Recipe(
        lambda t: rate,
        server_of(rule, momentum),
        batch,
        local,
        None if cohort is None else Cohort(len(shares), cohort),
        by_samples,
        made,
    )
    return Simulation(problem, rule, AtDeadline(depth), recipe, seed=seed)


def server_of(rule, momentum):
    """An optimiser with this momentum; without, for a method that refuses it."""
    return SGD(0.0 if rule.refuses(SGD(momentum)) else momentum)


def steps(sim, rounds):
    """The weights after each of these rounds."""
    return [(sim.step(), copy_of(sim.model))[1] for _ in range(rounds)]


def equal_shares(users, size):
    return [np.arange(u * size, (u + 1) * size) for u in range(users)]


def assert_close(found, wanted, tolerance):
    """The same names, and no entry further off than `tolerance` of the tensor's largest."""
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        off = (found[name].double() - value.double()).abs().max().item()
        assert off <= tolerance * value.double().abs().max().item(), (name, off)


def assert_same(found, wanted):
    """The same names and the same bits."""
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
