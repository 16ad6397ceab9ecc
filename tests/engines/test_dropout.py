"""Dropout is each user's own: the same masks on every engine, alone and among others."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reference import assert_close, copy_of, data, equal_shares
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.data.sampling import LocalWork
from salf.engines import ENGINES, engine
from salf.engines.base import may_drop
from salf.engines.dropout import Dropout
from salf.methods import method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

USERS, SIZE = 5, 4


class Own(nn.Module):
    """Dropout as a function."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, value):
        hidden = F.dropout(self.first(value), 0.4, self.training)
        return self.last(F.dropout(torch.relu(hidden), 0.2, self.training))


def plain():
    return nn.Sequential(
        nn.Dropout(0.2),
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(6, 5),
        nn.Linear(5, 3),
    )


def channels():
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        nn.Conv2d(2, 4, 1),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Dropout(0.3, inplace=True),
        nn.Linear(16, 3),
    )


def trained(make, kind, name="salf", steps=1):
    torch.manual_seed(0)
    model = make().double()
    inputs, labels = data(USERS, SIZE, (8,))
    layers = Layers.of(model, example=inputs[:2])
    made = engine(kind, model, layers, example=inputs, several_steps=steps > 1)
    shares = Partitioned(Samples(inputs, labels), equal_shares(USERS, SIZE))
    recipe = Recipe(lambda t: 0.1, batch_size=3, local=LocalWork(steps), engine=made)
    world = AtDeadline(Mixture(USERS, len(layers), 0.6))
    simulation = Simulation(Problem(model, layers, shares), method(name), world, recipe, seed=2)
    losses = [simulation.step().train_loss for _ in range(3)]
    return made.name, copy_of(model) | {"losses": torch.tensor(losses)}


@pytest.mark.parametrize(
    ("make", "kind", "name", "steps"),
    [
        (plain, "fused", "salf", 1),
        (plain, "fused", "asyncfl", 1),
        (plain, "fused", "mifa", 1),
        (plain, "grouped", "salf", 1),
        (plain, "stacked", "salf", 3),
        (channels, "fused", "salf", 1),
        (channels, "grouped", "salf", 1),
        (Own, "grouped", "salf", 1),
    ],
)
def test_the_engines_agree(make, kind, name, steps):
    _, wanted = trained(make, "loop", name, steps)
    found_kind, found = trained(make, kind, name, steps)
    assert found_kind == kind
    assert_close(found, wanted, 1e-10)


def test_auto_takes_the_fast_engines():
    assert trained(plain, "auto")[0] == "fused"
    assert trained(Own, "auto")[0] == "grouped"
    assert trained(plain, "auto", steps=2)[0] == "stacked"


def test_a_mask_keeps_the_mean_and_differs_between_users_rounds_and_calls():
    value = torch.ones(3 * 20_000)

    def masked(seed=0, t=1, users=(0, 1, 2)):
        with Dropout(Keyed(seed, t), np.array(users)):
            return torch.cat([F.dropout(value, 0.3) for _ in range(2)]).view(6, -1)

    rows = masked()
    assert rows.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert rows.mean(1).tolist() == pytest.approx([1] * 6, abs=0.02)
    others = torch.cat([rows, masked(1), masked(t=2), masked(users=(3, 4, 5))])
    assert len(others.unique(dim=0)) == len(others)
    assert torch.equal(masked(users=(2, 0, 1))[0], rows[2])


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_the_backward_pass_has_the_same_masks(reentrant):
    weight = torch.ones(64, requires_grad=True)
    with Dropout(Keyed(0, 1), np.arange(2)):
        kept = checkpoint(lambda w: F.dropout(w, 0.4), weight, use_reentrant=reentrant)
        total = kept.sum()
        if reentrant:
            total.backward()
        else:
            weight.grad = torch.autograd.grad(total, weight)[0]
    assert torch.equal(weight.grad, kept.detach())
    assert 0 < int((kept == 0).sum()) < 64


def test_evaluation_and_models_without_dropout_are_left_alone():
    with Dropout(Keyed(0, 1), np.arange(2)):
        assert torch.equal(F.dropout(torch.ones(4), 0.5, training=False), torch.ones(4))
        assert torch.equal(nn.Dropout(0.5).eval()(torch.ones(4)), torch.ones(4))
    assert may_drop(plain())
    assert may_drop(Own())
    assert not may_drop(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert set(ENGINES) == {"loop", "fused", "grouped", "stacked"}
