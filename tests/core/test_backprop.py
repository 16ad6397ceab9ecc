"""Backpropagation that stops: the right gradients, and no work below the depth."""

import pytest
import torch
from torch.nn import functional as F

from devices import MODELS, TARGETS, full_gradients, names_of, prepared
from salf.core.layers import backward_to


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_full_backward_and_nothing_is_computed_below_the_depth(name):
    model, backpropagation, device, loss = prepared(name, torch.float64)
    layers, full = backpropagation.layers, full_gradients(model, loss)
    for depth in range(1, len(layers) + 2):
        found = backward_to(depth, loss(), dict(model.named_parameters()), layers)
        assert set(found) == names_of(layers, depth)
        for key, value in found.items():
            torch.testing.assert_close(value, full[key], rtol=1e-12, atol=1e-15)
        assert set(device.passed) == set(range(depth, len(layers) + 1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_get_no_gradient_and_those_the_loss_does_not_use_get_zeros():
    model, backpropagation, _, loss = prepared("mlp")
    full = full_gradients(model, loss)
    model[2].requires_grad_(False)
    parameters, layers = dict(model.named_parameters()), backpropagation.layers
    found = backward_to(1, loss(), parameters, layers)
    assert set(found) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    torch.testing.assert_close(found["0.weight"], full["0.weight"])
    without_the_last = F.cross_entropy(model[:3](MODELS["mlp"][1]), TARGETS)
    found = backward_to(1, without_the_last, parameters, layers)
    assert not found["4.weight"].any()
    assert found["0.weight"].any()
