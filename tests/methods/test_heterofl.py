"""HeteroFL against networks that really are smaller."""

from collections import OrderedDict
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from nets import small_mlp, small_normed
from reference import (
    ANY_MODEL,
    Scripted,
    assert_close,
    copy_of,
    data,
    gradients,
    plan_of,
    rows_of,
    simulate,
    steps,
    tensors,
)
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.engines import ENGINES
from salf.methods import method
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture


class Scaler(nn.Module):
    """HeteroFL's: hidden outputs divided by the width while training."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, value):
        return value / self.width if self.training else value


def half_mlp():
    hidden = [nn.Linear(4, 3), Scaler(0.5), nn.Tanh(), nn.Linear(3, 3), Scaler(0.5), nn.Tanh()]
    return [*hidden, nn.Linear(3, 3)]


def half_normed():
    return [
        nn.Conv2d(2, 2, 3, padding=1, bias=False),
        Scaler(0.5),
        nn.BatchNorm2d(2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        Scaler(0.5),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 2 * 2, 3),
    ]


MODELS = {
    "mlp": (small_mlp, half_mlp, (4,)),  # 4-6-5-3: 5 units keep ceil(2.5) = 3
    "batch norm": (small_normed, half_normed, (2, 4, 4)),
}


def named_like(full, modules):
    """The smaller network under the full one's names, its weights the full one's first entries."""
    places = iter(name for name, _ in full.named_children())
    small = nn.Sequential(
        OrderedDict(
            (f"scale{k}", m) if isinstance(m, Scaler) else (next(places), m)
            for k, m in enumerate(modules)
        )
    ).to(next(full.parameters()).dtype)
    with torch.no_grad():
        for name, value in tensors(small).items():
            value.copy_(tensors(full)[name][tuple(slice(n) for n in value.shape)])
    return small


def by_hand(full, small, inputs, targets, straggler, size, divide_by=None):
    """Average entry by entry over the users who hold it, in a plain numpy loop."""
    rows = rows_of(inputs, targets, size)
    parameters = [name for name, _ in full.named_parameters()]
    sums = {name: np.zeros(tensors(full)[name].shape) for name in parameters}
    holders = {name: np.zeros(tensors(full)[name].shape, int) for name in parameters}
    for user, late in enumerate(straggler):
        found = gradients(small if late else full, *rows(np.array([user])))
        for name in parameters:
            value = found[name].numpy()
            for entry in np.ndindex(value.shape):
                sums[name][entry] += value[entry]
                holders[name][entry] += 1
    over = {name: divide_by or np.maximum(count, 1) for name, count in holders.items()}
    return {name: torch.from_numpy(sums[name] / over[name]) for name in parameters}, holders


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("average", ["reached", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_entries_are_averaged_over_the_users_who_hold_them(name, average, engine):
    make, halve, shape = MODELS[name]
    full, users, size = make(), 4, 2
    small = named_like(full, halve())
    inputs, targets = data(users, size, shape)
    straggler = [False, True, False, True]
    over = users if average == "all" else None
    wanted, holders = by_hand(full, small, inputs, targets, straggler, size, over)
    made = ENGINES[engine](full, Layers.of(full))
    plan = plan_of("heterofl", [2 if late else 1 for late in straggler], 3, average=average)
    step = made.round(plan, 1, {}, rows_of(inputs, targets, size)).step
    parameters = {key: step.values[key] for key in wanted}
    assert_close(parameters, wanted, 1e-12)
    assert not step.held  # two users hold everything
    assert {2, 4} == set(np.unique(np.concatenate([h.ravel() for h in holders.values()])))


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("average", ["reached", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_entries_nobody_holds_do_not_move_not_even_by_momentum(name, average, engine):
    """Round 1: everybody whole, which fills the momentum. Round 2: only half networks."""
    make, halve, _ = MODELS[name]
    full, script = make(), Scripted([[1, 1, 1], [2, 2, 2]], 3)
    more = {"momentum": 0.5, "engine": engine, "options": {"average": average}}
    sim = simulate(full, "heterofl", script, **more)
    sim.step()
    before, velocity = copy_of(full), deepcopy(sim.server.state["velocity"])
    sim.step()
    small = named_like(full, halve())
    for key, parameter in full.named_parameters():
        held = torch.zeros_like(parameter, dtype=torch.bool)
        held[tuple(slice(n) for n in tensors(small)[key].shape)] = True
        moved = parameter.detach() != before[key]
        assert not moved[~held].any(), key
        assert moved[held].any(), key
        assert torch.equal(sim.server.state["velocity"][key][~held], velocity[key][~held])


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_running_statistics_are_the_mean_over_full_width_users(engine):
    """As the class says: narrow users send none, so they must not be counted in the mean either."""
    full, users, size = small_normed(), 4, 2
    inputs, targets = data(users, size, (2, 4, 4))
    rows = rows_of(inputs, targets, size)
    made = ENGINES[engine](full, Layers.of(full))
    step = made.round(plan_of("heterofl", [1, 2, 1, 2], 3), 1, {}, rows).step
    moved = [gradients(full, *rows(np.array([user]))) for user in (0, 2)]
    for name in ("1.running_mean", "1.running_var", "5.running_mean", "5.running_var"):
        torch.testing.assert_close(step.values[name], (moved[0][name] + moved[1][name]) / 2)
    assert step.values["1.num_batches_tracked"].item() == 1


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("name", MODELS)
def test_full_width_is_fedavg(name, engine):
    """To rounding: the sum is divided instead of summing shares."""
    weights = []
    for rule, options in (("heterofl", {"width": 1.0}), ("fedavg", {})):
        more = {"momentum": 0.5, "engine": engine, "options": options}
        sim = simulate(MODELS[name][0](), rule, Mixture(4, 3, 0.5), size=4, **more)
        weights.append(steps(sim, 3)[-1])
    assert_close(*weights, 1e-13)


def test_a_lucky_straggler_still_trains_the_narrow_network():
    """Its width was settled before the deadline, so being slow counts, not the depth reached."""
    script = Scripted([[1, 1, 3]], 3, stragglers=[[1, 2]])
    rule = method("heterofl")
    world = rule.world(AtDeadline(script))
    arrived, _ = world.arrivals(1, Keyed(0, 1), np.arange(world.users), world.start())
    plan = rule.plan(1, arrived, world.unreached(1, np.arange(world.users), world.start()))
    assert [(group.users.tolist(), group.width) for group in plan.groups] == [
        ([0], 1.0),
        ([1, 2], 0.5),
    ]
