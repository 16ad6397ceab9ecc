"""Backpropagation that stops: the right gradients, and no work below the depth."""

import pytest
import torch
from torch import nn

from nets import Twice, small_mlp, small_normed
from reference import data, gradients
from salf.common.errors import SalfError
from salf.core.layers import Layers, backward_to
from salf.engines import cross_entropy


class Residual(nn.Module):
    """Two residual blocks, so that the signal has more than one way down."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.stem = nn.Linear(4, 4)

    def forward(self, value):
        value = self.stem(value)
        value = value + torch.tanh(self.one(value))
        value = value + torch.tanh(self.two(value))
        return self.head(value)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.one = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.two = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, value):
        value = self.two(self.one(self.embed(value[..., None])))
        return self.head(value.mean(1))


MODELS = {
    "mlp": (small_mlp, (4,), None),
    "convolutions with batch norm": (small_normed, (2, 4, 4), None),
    "residual": (Residual, (4,), None),
    "transformer": (Transformer, (4,), None),
    "transformer in four layers": (Transformer, (4,), ["embed", "one", "two", "head"]),
}


def prepared(name):
    make, shape, given = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    inputs, targets = data(1, 4, shape)
    return model, inputs, targets, Layers.of(model, given, inputs)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_full_backward_for_reached_layers_and_absent_for_others(name):
    model, inputs, targets, layers = prepared(name)
    full = gradients(model, inputs, targets)
    for depth in range(1, len(layers) + 2):
        loss = cross_entropy(model(inputs), targets).mean()
        found = backward_to(depth, loss, dict(model.named_parameters()), layers)
        reached = {n for layer in layers[depth - 1 :] for n in layer.parameters}
        assert set(found) == reached
        for key, value in found.items():
            torch.testing.assert_close(value, full[key], rtol=1e-12, atol=1e-15)
    assert all(parameter.grad is None for parameter in model.parameters())


class Note(torch.autograd.Function):
    """Identity that says when the signal passes back through it."""

    @staticmethod
    def forward(ctx, value, place, passed):
        ctx.place, ctx.passed = place, passed
        return value.view_as(value)

    @staticmethod
    def backward(ctx, signal):
        ctx.passed.append(ctx.place)
        return signal, None, None


@pytest.mark.parametrize("name", ["mlp", "convolutions with batch norm", "residual"])
def test_nothing_is_computed_below_the_depth(name):
    """A note after every layer's modules: the signal comes to those of d..L and no further."""
    model, inputs, targets, layers = prepared(name)
    passed = []
    modules = [model.get_submodule(layer.name) for layer in layers]
    for place, module in enumerate(modules, 1):
        module.register_forward_hook(lambda m, _, out, k=place: Note.apply(out, k, passed))
    for depth in range(1, len(layers) + 2):
        loss = cross_entropy(model(inputs), targets).mean()
        passed.clear()
        backward_to(depth, loss, dict(model.named_parameters()), layers)
        assert sorted(passed) == list(range(depth, len(layers) + 1))


def test_nothing_runs_at_all_when_no_layer_was_reached():
    assert backward_to(4, torch.tensor(1.0), {}, Layers.of(small_mlp())) == {}


def test_a_depth_outside_the_model_is_refused():
    model, inputs, targets, layers = prepared("mlp")
    loss = cross_entropy(model(inputs), targets).mean()
    for depth in (0, 5):
        with pytest.raises(SalfError, match=f"depth {depth} is outside"):
            backward_to(depth, loss, dict(model.named_parameters()), layers)


def test_frozen_parameters_get_no_gradient_and_the_signal_passes_through_them():
    model, inputs, targets, layers = prepared("mlp")
    full = gradients(model, inputs, targets)
    model[2].requires_grad_(False)
    loss = cross_entropy(model(inputs), targets).mean()
    found = backward_to(1, loss, dict(model.named_parameters()), layers)
    assert set(found) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    torch.testing.assert_close(found["0.weight"], full["0.weight"])


def test_a_parameter_the_loss_does_not_use_gets_zeros():
    model, inputs, targets, layers = prepared("mlp")
    loss = cross_entropy(model[:3](inputs), targets).mean()  # the last layer left out
    found = backward_to(2, loss, dict(model.named_parameters()), layers)
    assert not found["4.weight"].any()
    assert found["2.weight"].any()


def test_a_module_used_twice_is_reached_only_with_its_first_use():
    """Half its gradient is ready early; sending that half would be wrong."""
    torch.manual_seed(0)
    model = Twice().double()
    inputs, targets = data(1, 4, (4,))
    layers = Layers.of(model, example=inputs)
    full = gradients(model, inputs, targets)

    def found(depth):
        loss = cross_entropy(model(inputs), targets).mean()
        return backward_to(depth, loss, dict(model.named_parameters()), layers)

    assert [layer.name for layer in layers] == ["twice", "middle"]
    assert set(found(2)) == {"middle.weight", "middle.bias"}
    torch.testing.assert_close(found(1)["twice.weight"], full["twice.weight"])
