"""Every user's own update from one pass of the fused engine, against the loop engine's."""

import numpy as np
import pytest
import torch
from torch import nn

from nets import small_mlp, small_normed
from reference import assert_close, copy_of, data, plan_of, rows_of
from salf.core.aggregate import LayerwiseAggregate
from salf.core.layers import Layers
from salf.engines import FusedEngine, GroupedEngine, LoopEngine, StackedEngine, cross_entropy
from salf.engines.stacked import obstacle
from salf.methods import Group, RoundPlan
from salf.models import build


class Noting(LayerwiseAggregate):
    """Keeps every user's own update."""

    def __init__(self, layers, like):
        super().__init__(layers, like, separate=True)
        self.updates, self.weights = {}, {}

    def add(self, update, weights=None, held=None, user=None):
        assert user not in self.updates
        self.updates[user] = {name: value.clone() for name, value in update.items()}
        self.weights[user] = weights.tolist()
        super().add(update, weights, held, user)


def both(model, plan, rows, t=1, old=None, layers=None, **options):
    """What the fused engine and the loop engine add, and their results."""
    layers = layers or Layers.of(model)
    found = []
    for made in (FusedEngine(model, layers, **options), LoopEngine(model, layers)):
        sums = Noting(layers, made.weights)
        found.append((sums, made.round(plan, t, old or {}, rows, aggregate=sums)))
    return found


def assert_agree(found, tolerance=1e-10):
    (fused, fused_result), (loop, loop_result) = found
    assert fused.weights == loop.weights
    assert set(fused.updates) == set(loop.updates)
    for user, wanted in loop.updates.items():
        assert_close(fused.updates[user], wanted, tolerance)
    assert fused_result.reached == loop_result.reached
    assert fused_result.loss == pytest.approx(loop_result.loss, rel=1e-12)
    assert_close(fused_result.step.values, loop_result.step.values, tolerance)


def together(model, rows):
    """Whether the users' own updates come from one pass."""
    return obstacle(model, rows(np.array([0]))[0]) is None


def of_depths(depths, layers, users=None):
    """Everybody with a weight of its own."""
    depths = np.array(depths)
    reach = depths <= np.arange(1, layers + 1)[:, None]
    weights = reach * np.linspace(0.1, 0.7, len(depths))
    users = np.arange(len(depths)) if users is None else np.array(users)
    return RoundPlan((Group(users, weights, 1),))


NETS = {
    "mlp": (small_mlp, (4,)),
    "paper's cnn": (lambda: build("cnn", (1, 16, 16), 3, seed=0).double(), (1, 16, 16)),
    "convolution of one dimension, rows of vectors": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, padding=1),
            nn.Tanh(),
            nn.Linear(4, 5),
            nn.Flatten(),
            nn.Linear(15, 3),
        ).double(),
        (2, 4),
    ),
}


def made(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    model = make()
    return model, shape


@pytest.mark.parametrize("chunk_bytes", [2**28, 5000])
@pytest.mark.parametrize("name", NETS)
def test_every_users_update_is_that_of_the_loop_engine(name, chunk_bytes, monkeypatch):
    model, shape = made(name)
    before = copy_of(model)
    layers = len(Layers.of(model))
    depths = [1 + (2 * u) % layers for u in range(5)]
    plan = of_depths(depths, layers, users=[5, 0, 3, 1, 6])
    rows = rows_of(*data(7, 3, shape), 3)
    monkeypatch.setattr(StackedEngine.__init__, "__defaults__", (cross_entropy, chunk_bytes))
    found = both(model, plan, rows)
    assert_agree(found)
    assert together(model, rows) == (name != "convolution of one dimension, rows of vectors")
    assert_close(copy_of(model), before, 0)


def test_users_with_unequal_batches_and_on_old_models_agree():
    model, old = small_normed(), small_normed(seed=1)
    kept = {**dict(old.named_parameters()), **dict(old.named_buffers())}
    kept["1.running_mean"] += 1
    inputs, targets = data(6, 3, (2, 4, 4))

    class Rows:
        def __call__(self, users, step=1):
            index = np.concatenate([np.arange(3 * u, 3 * u + 2 + u // 3) for u in users])
            return inputs[index], targets[index]

    weights = np.array([[0.0, 0.1, 0.0], [0.2, 0.3, 0.0], [0.1, 0.2, 0.3]])
    plan = RoundPlan(
        (
            Group(np.arange(3), weights, 2, rows=2),
            Group(np.array([4, 3]), weights[:, :2], 2, rows=3),
            Group(np.array([5]), weights[:, 1:2], 1, rows=3),
        )
    )
    assert_agree(both(model, plan, Rows(), 2, {1: kept}))


@pytest.mark.parametrize("frozen", [["0"], ["2"], ["4"], ["0", "4"]])
def test_frozen_modules_agree(frozen):
    model = small_mlp()
    for place in frozen:
        model[int(place)].requires_grad_(False)
    layers = 3 - len(frozen)
    found = both(
        model, of_depths([1, min(2, layers), layers, 1], layers), rows_of(*data(4, 2, (4,)), 2)
    )
    assert_agree(found)
    assert not any(name.split(".")[0] in frozen for name in found[0][0].updates[0])


def test_a_parameter_shared_by_two_modules_has_the_sum_of_both_gradients():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3)).double()
    model[2].weight = model[0].weight
    layers = Layers.of(model, [["0", "2"], "3"])
    plan = of_depths([1, 2, 1], 2)
    assert_agree(both(model, plan, rows_of(*data(3, 2, (4,)), 2), layers=layers))


def test_models_that_cannot_have_stacked_weights_are_computed_user_by_user():
    torch.manual_seed(0)
    hooked = nn.Conv2d(2, 2, 1)
    hooked.register_forward_hook(lambda module, given, outputs: 2 * outputs)
    same = nn.Conv2d(2, 2, 3, padding="same")
    odds = (nn.PReLU(), nn.GroupNorm(1, 2), hooked), (nn.BatchNorm2d(2), same)
    for odd in (*odds[0], *odds[1]):
        model = nn.Sequential(nn.Conv2d(2, 2, 1), odd, nn.Flatten(), nn.Linear(32, 3)).double()
        layers = len(Layers.of(model))
        plan, rows = of_depths([1, 2, layers], layers), rows_of(*data(3, 2, (2, 4, 4)), 2)
        assert_agree(both(model, plan, rows))
        assert together(model, rows) == (odd in odds[0])


def test_narrow_networks_and_other_engines_agree():
    model = small_mlp()
    plan = plan_of("heterofl", [1, 2, 1], 3)
    rows = rows_of(*data(3, 2, (4,)), 2)
    assert_agree(both(model, plan, rows))
    sums = Noting(Layers.of(model), dict(model.named_parameters()))
    GroupedEngine(model, Layers.of(model)).round(of_depths([1, 2], 3), 1, {}, rows, aggregate=sums)
    assert list(sums.updates) == [0, 1]
