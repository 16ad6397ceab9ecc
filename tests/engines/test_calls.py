"""Calls that a user's own pass computes faster: to rounding what PyTorch's own compute."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from salf.core.layers import Layers
from salf.engines import LoopEngine, StackedEngine, calls, engine, kernels
from salf.engines.calls import FasterCalls
from salf.engines.kernels import turned


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
    monkeypatch.setattr(calls, "LEAST_MULTIPLIED", 0)
    monkeypatch.setattr(calls, "LEAST_LAST", 6)
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

    monkeypatch.setattr(kernels, "PRODUCT", product)
    monkeypatch.setattr(calls, "LEAST_MULTIPLIED", 0)
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
def test_other_numbers_are_computed_as_without_it(dtype, monkeypatch):
    monkeypatch.setattr(calls, "LEAST_MULTIPLIED", 0)
    model = nn.Linear(128, 96).to(dtype)
    inputs = torch.randn(4, 128, dtype=dtype)
    with FasterCalls(model):
        assert torch.equal(model(inputs), F.linear(inputs, model.weight, model.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["distinct", "ties", "all equal"])
@pytest.mark.parametrize("size", [(2, 3, 8, 9), (1, 1, 2, 2), (3, 2, 5, 4)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_pools_have_the_bits_of_pytorchs(size, kind, dtype, last, monkeypatch):
    monkeypatch.setattr(calls, "LEAST_POOLED", 0)
    torch.manual_seed(0)
    inputs = torch.randn(size, dtype=dtype)
    inputs = {"distinct": inputs, "ties": inputs.round(), "all equal": torch.ones_like(inputs)}[
        kind
    ]
    if last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    pool, signal = nn.MaxPool2d(2), torch.randn(*size[:2], size[2] // 2, size[3] // 2, dtype=dtype)
    found = []
    for mode in (FasterCalls(pool), nullcontext()):
        leaf = inputs.clone().requires_grad_()
        with mode:
            outputs = pool(leaf)
        outputs.backward(signal)
        found.append((outputs, leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


THIN = {
    "5x5": nn.Conv2d(6, 6, 5),
    "padded": nn.Conv2d(3, 8, 3, padding=1),
    "rectangle": nn.Conv2d(2, 4, (3, 5), padding=(2, 0), bias=False),
    "dilated": nn.Conv2d(3, 5, 3, padding=1, dilation=2),
    "1x1": nn.Conv2d(3, 2, 1),
}


@pytest.mark.parametrize("kind", THIN)
def test_a_thin_convolution_has_the_gradients_of_the_convolution(kind, monkeypatch):
    convolution = copy.deepcopy(THIN[kind]).double()
    torch.manual_seed(0)
    inputs = torch.randn(4, convolution.in_channels, 9, 11, dtype=torch.float64, requires_grad=True)
    wanted = gradients(convolution, inputs)
    ways = []
    monkeypatch.setattr(kernels, "turned", lambda *given: ways.append(1) or turned(*given))
    found = gradients(convolution, inputs, FasterCalls(convolution))
    assert ways
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_calls_are_pytorchs_own_under_autocast_and_in_checkpoints():
    convolution, inputs = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = gradients(convolution, inputs), None
        found = gradients(convolution, inputs, FasterCalls(convolution))
    assert all(map(torch.equal, found, wanted))
    model = MODELS["halving pools"]()
    pictures = torch.randn(6, 3, 16, 16, requires_grad=True)

    class Checkpointed(nn.Module):
        def forward(self, value):
            return checkpoint(model, value, use_reentrant=False)

    outer = Checkpointed()
    with FasterCalls(outer):
        outputs = outer(pictures)
    (found,) = torch.autograd.grad(outputs.square().sum(), pictures)
    (wanted,) = torch.autograd.grad(model(pictures).square().sum(), pictures)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


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
