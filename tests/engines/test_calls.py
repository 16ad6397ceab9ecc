"""Calls that a user's own pass computes faster: to rounding what PyTorch's own compute."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from salf.core.layers import Layers
from salf.engines import LoopEngine, StackedEngine, calls, engine
from salf.engines.calls import FasterCalls


class Viewing(nn.Module):
    """A network as people write it, which asks for memory in the usual order."""

    def __init__(self, norm=None):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm, self.last = norm or nn.Identity(), nn.Linear(16 * 4 * 4, 40)

    def forward(self, value):
        value = F.max_pool2d(torch.relu(self.norm(self.first(value))), 3, stride=2, padding=1)
        value = F.max_pool2d(self.second(value), 1)
        return self.last(value.view(value.size(0), -1))


def gradients(model, inputs, mode=None):
    if mode is None:
        outputs = model(inputs)
    else:
        with mode:
            outputs = model(inputs)
    found = torch.autograd.grad(outputs.square().sum(), [*model.parameters(), inputs])
    return [outputs.detach(), *found]


MODELS = {
    "views": lambda: Viewing(),
    "batch norm": lambda: Viewing(nn.BatchNorm2d(8)),
    "group norm": lambda: Viewing(nn.GroupNorm(2, 8)),
    "halving pools": lambda: nn.Sequential(
        nn.Conv2d(3, 5, 3, padding="same"), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(5, 4, 3),
        nn.Dropout(0.0), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 256, bias=False),
    ),
    "rows of rows": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(256, 64), nn.Flatten()),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_pytorch_to_rounding(name, monkeypatch):
    monkeypatch.setattr(calls, "LEAST_POOLED", 0)
    monkeypatch.setattr(calls, "LEAST_WEIGHTS", 0)
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs = torch.randn(6, 3, 16, 16, requires_grad=True)
    wanted = gradients(model, inputs)
    found = gradients(model, inputs, FasterCalls(model))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))


def test_linear_layers_go_to_onednn_and_can_be_differentiated_twice(monkeypatch):
    used = []

    def product(*given):
        used.append(given[1].shape)
        return torch.ops.mkldnn._linear_pointwise(*given)

    monkeypatch.setattr(calls, "_PRODUCT", product)
    model, inputs = nn.Linear(128, 96), torch.randn(4, 128, requires_grad=True)
    with FasterCalls(model):
        outputs = model(inputs)
    assert used == [(96, 128)]
    (once,) = torch.autograd.grad(outputs.pow(3).sum(), inputs, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), inputs)
    (plain,) = torch.autograd.grad(model(inputs).pow(3).sum(), inputs, create_graph=True)
    (wanted,) = torch.autograd.grad(plain.sum(), inputs)
    assert torch.allclose(twice, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_are_computed_as_without_it(dtype):
    model = nn.Linear(128, 96).to(dtype)
    inputs = torch.randn(4, 128, dtype=dtype)
    with FasterCalls(model):
        assert torch.equal(model(inputs), F.linear(inputs, model.weight, model.bias))


SETTINGS = [{}, {"stride": 2}, {"padding": 2}, {"dilation": 2}, {"groups": 2}, {"bias": False}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["first step", "later steps"])
def test_convolutions_with_weights_of_each_users_own_are_those_of_each_user(settings, shared):
    model = nn.Conv2d(4, 6, 3, **settings).double()
    stack = {name: each.detach().expand(3, *each.shape) for name, each in model.named_parameters()}
    if not shared:
        stack = {name: torch.randn_like(each) for name, each in stack.items()}
    stack = {name: each.requires_grad_() for name, each in stack.items()}
    inputs = torch.randn(3, 2, 4, 9, 9, dtype=torch.float64, requires_grad=True)

    def one(own, rows):
        return torch.func.functional_call(model, own, (rows,))

    with FasterCalls(model):
        together = torch.vmap(one)(stack, inputs)
    leaves = [*stack.values(), inputs]
    found = torch.autograd.grad(together.square().sum(), leaves)
    alone = torch.stack(
        [one({n: each[u] for n, each in stack.items()}, inputs[u]) for u in range(3)]
    )
    wanted = torch.autograd.grad(alone.square().sum(), leaves)
    for ours, theirs in zip((together, *found), (alone, *wanted), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def network(channels):
    return nn.Sequential(
        nn.Conv2d(1, channels, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(channels * 144, 4),
    )  # fmt: skip


@pytest.mark.parametrize(("channels", "kind"), [(4, StackedEngine), (64, LoopEngine)])
def test_small_convolutions_are_stacked_and_large_ones_computed_user_by_user(channels, kind):
    model = network(channels)
    example = torch.zeros(4, 1, 28, 28)
    chosen = engine("auto", model, Layers.of(model), example=example, several_steps=True)
    assert type(chosen) is kind
    assert kind is StackedEngine or "KiB a row are not faster together" in chosen.why
