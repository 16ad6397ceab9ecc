"""The oracle itself, against plain autograd user by user."""

import numpy as np
import pytest
import torch
from torch import nn

from nets import small_normed
from reference import assert_close, assert_same, copy_of, data, gradients, rows_of
from salf.core.layers import Layers
from salf.engines import LoopEngine
from salf.methods import Group, RoundPlan

C = np.array([[0.5, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.3, 0.7]])


def wanted_step(model, layers, inputs, targets, size):
    rows = rows_of(inputs, targets, size)
    total = {}
    for user in range(C.shape[1]):
        for name, value in gradients(model, *rows(np.array([user]))).items():
            weight = C[layers.index_of[name], user]
            if not value.is_floating_point():
                total[name] = value
            else:
                total[name] = total.get(name, 0) + weight * value
    return total


def test_the_step_is_the_weighted_sum_of_the_users_gradients_and_statistics():
    model = small_normed()
    layers = Layers.of(model)
    inputs, targets = data(3, 2, (2, 4, 4))
    before = copy_of(model)
    plan = RoundPlan((Group(np.arange(3), C, 1),))
    result = LoopEngine(model, layers).round(plan, 1, {}, rows_of(inputs, targets, 2))
    assert_close(result.step.values, wanted_step(model, layers, inputs, targets, 2), 1e-13)
    assert result.reached == (1, 2, 3)
    assert_same(copy_of(model), before)  # computing a round changes nothing


def test_a_users_loss_is_the_mean_over_its_rows_and_the_rounds_over_its_users():
    model = small_normed()
    inputs, targets = data(3, 2, (2, 4, 4))
    losses = [
        nn.functional.cross_entropy(model(inputs[2 * u : 2 * u + 2]), targets[2 * u : 2 * u + 2])
        for u in range(3)
    ]
    model = small_normed()
    plan = RoundPlan((Group(np.arange(3), C, 1),))
    result = LoopEngine(model, Layers.of(model)).round(plan, 1, {}, rows_of(inputs, targets, 2))
    assert result.loss == pytest.approx(sum(x.item() for x in losses) / 3, rel=1e-12)


def test_groups_on_old_models_use_those_models():
    model, old = small_normed(0), small_normed(1)
    layers = Layers.of(model)
    inputs, targets = data(3, 2, (2, 4, 4))
    kept = {**dict(old.named_parameters()), **dict(old.named_buffers())}
    plan = RoundPlan((Group(np.arange(3), C, 1),))
    before = copy_of(old)
    result = LoopEngine(model, layers).round(plan, 2, {1: kept}, rows_of(inputs, targets, 2))
    assert_close(result.step.values, wanted_step(old, layers, inputs, targets, 2), 1e-13)
    assert_same(copy_of(old), before)


def test_a_model_left_in_evaluation_mode_is_trained_in_training_mode():
    model = small_normed().eval()
    inputs, targets = data(3, 2, (2, 4, 4))
    plan = RoundPlan((Group(np.arange(3), C, 1),))
    result = LoopEngine(model, Layers.of(model)).round(plan, 1, {}, rows_of(inputs, targets, 2))
    twin = small_normed()
    wanted = wanted_step(twin, Layers.of(twin), inputs, targets, 2)
    assert_close(result.step.values, wanted, 1e-13)


def test_statistics_in_front_of_the_first_layer_are_put_back_after_every_user():
    """A norm without parameters before any layer: a round must leave it as it was, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double()
    before = copy_of(model)
    plan = RoundPlan((Group(np.arange(3), C[2:], 1),))
    LoopEngine(model, Layers.of(model)).round(plan, 1, {}, rows_of(*data(3, 2, (4,)), 2))
    assert_same(copy_of(model), before)


class Flags(nn.Module):
    """Moves a buffer that belongs to no layer, and has one of booleans."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.last.register_buffer("mask", torch.ones(5, dtype=torch.bool))

    def forward(self, value):
        self.calls += 1
        return self.last(torch.relu(self.first(value)) * self.last.mask)


def test_buffers_of_no_layer_and_flags_are_left_as_they_are():
    model = Flags()
    inputs, targets = data(3, 2, (4,))
    inputs = inputs.float()
    layers = Layers.of(model, ["first", "last"])
    plan = RoundPlan((Group(np.arange(3), np.full((2, 3), 1 / 3), 1),))
    result = LoopEngine(model, layers).round(plan, 1, {}, rows_of(inputs, targets, 2))
    assert model.calls == 0  # not handed on from one user to the next
    assert model.last.mask.all()
    assert set(result.step.values) == {"first.weight", "first.bias", "last.weight", "last.bias"}


def test_a_mask_of_minus_infinity_does_not_look_like_divergence():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("mask", torch.full((4,), float("-inf")))

    model = nn.Sequential(Masked())
    step = LoopEngine(model, Layers.of(model)).round(
        RoundPlan((Group(np.arange(1), np.ones((1, 1)), 1),)),
        1,
        {},
        lambda users, step: (torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)),
    )
    assert step.step.values["0.mask"].tolist() == [0, 0, 0, 0]
