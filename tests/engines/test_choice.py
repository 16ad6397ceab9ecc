"""What the fused engine refuses, why it says so, and that `auto` then takes the loop."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from nets import small_mlp
from reference import assert_close, assert_same, copy_of, data, plan_of, rows_of
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.engines import ENGINES, FusedEngine, LoopEngine, engine
from salf.models import build


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, value):
        return self.net(value)


class Reversed(nn.Sequential):
    """A Sequential with a forward pass of its own."""

    def forward(self, value):
        for module in reversed(self):
            value = module(value)
        return value


class MixesRows(nn.Module):
    def forward(self, value):
        return value - value.mean(0)


class OwnLinear(nn.Linear):
    """A subclass may do anything."""


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 3))


def tied(between=()):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), *between, nn.Linear(4, 4), nn.Linear(4, 3))
    model[len(between) + 2].weight = model[0].weight
    return model


REFUSED = {
    "another module": (Wrapped, "Wrapped is not a plain nn.Sequential"),
    "own forward": (lambda: Reversed(nn.Linear(4, 3), nn.Linear(4, 4)), "Reversed is not a plain"),
    "shared layer": (shared, "2 belongs to a layer"),
    "tied to the layer before": (tied, "2"),
    "tied to an earlier layer": (lambda: tied((nn.Linear(4, 4), nn.Tanh())), "4"),
}
# Nothing says that these keep rows apart, and some do not.
DOUBTED = {
    "custom module": (lambda: nn.Sequential(nn.Linear(4, 3), MixesRows()), r"1 \(MixesRows\)"),
    "subclass": (lambda: nn.Sequential(OwnLinear(4, 3)), r"0 \(OwnLinear\)"),
    "nested custom module": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 3), MixesRows())),
        r"0\.1 \(MixesRows\)",
    ),
    "recurrent": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 3)), r"1 \(LSTM\)"),
    "instance norm of its own kind": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)),
        r"1 \(SyncBatchNorm\)",
    ),
    "softmax over rows": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)), r"1 \(Softmax\)"),
    "softmax over rows, from the end": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-2)),
        r"1 \(Softmax\)",
    ),
    "softmax over who knows what": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(None)),
        r"1 \(LogSoftmax\)",
    ),
    "flatten with the rows": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 4)), nn.Linear(4, 3)),
        r"0 \(Flatten\)",
    ),
    "unflatten the rows": (
        lambda: nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Flatten(1), nn.Linear(4, 3)),
        r"0 \(Unflatten\)",
    ),
    "embedding that counts the batch": (
        lambda: nn.Sequential(nn.Embedding(4, 2, scale_grad_by_freq=True), nn.Flatten()),
        r"0 \(Embedding\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fused_refuses_and_says_why_and_auto_takes_the_loop(name):
    make, says = REFUSED[name]
    model = make()
    layers = Layers.of(model, example=torch.zeros(2, 4))
    with pytest.raises(SalfError, match=rf"fused engine cannot run this model: {says}.*'loop'"):
        engine("fused", model, layers)
    chosen = engine("auto", model, layers)
    assert isinstance(chosen, LoopEngine)
    assert re.match(rf"{says}.*, so users are computed one at a time$", chosen.why)


@pytest.mark.parametrize("name", DOUBTED)
def test_auto_takes_the_loop_where_it_is_in_doubt_and_cannot_check(name):
    make, says = DOUBTED[name]
    model = make()
    layers = Layers.of(model)
    chosen = engine("auto", model, layers)
    assert isinstance(chosen, LoopEngine)
    assert re.match(rf"{says}.*, so users are computed one at a time$", chosen.why)
    assert engine("fused", model, layers).why == "requested"


@pytest.mark.parametrize(
    "given",
    [
        [["4"], ["2"], ["0"]],
        [["0", "4"], ["2"]],
        [["0.weight"], ["0.bias", "2"], ["4"]],
        [["0.bias"], ["0.weight", "2"], ["4"]],
    ],
    ids=str,
)
def test_layers_that_are_not_whole_modules_in_order_are_refused_or_computed_right(given):
    """Whatever `auto` chooses must give the loop's step: half a module is no block."""
    model = small_mlp()
    layers = Layers.of(model, given)
    assert_grouped_is_right(model, layers)


@pytest.mark.parametrize("make", [shared, tied, lambda: tied((nn.Linear(4, 4), nn.Tanh()))])
def test_shared_weights_are_refused_or_computed_right(make):
    torch.manual_seed(0)
    model = make().double()
    assert_grouped_is_right(model, Layers.of(model))


def assert_grouped_is_right(model, layers):
    """It is what `auto` chooses, and its step is the loop's."""
    plan = plan_of("salf", [1 + u % (len(layers) + 1) for u in range(5)], len(layers))
    rows = rows_of(*data(5, 2, (4,)), 2)
    loop = LoopEngine(model, layers).round(plan, 1, {}, rows)
    chosen = engine("auto", model, layers, example=rows(np.arange(5))[0])
    auto = chosen.round(plan, 1, {}, rows)
    assert chosen.name == "grouped"
    assert_close(auto.step.values, loop.step.values, 1e-10)


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg11", "vgg19"])
def test_auto_is_fused_for_the_papers_models(name):
    model = build(name, (3, 32, 32), 10, seed=0)
    chosen = engine("auto", model, Layers.of(model))
    assert chosen.name == "fused"
    assert chosen.why == "the model is a plain nn.Sequential"


def test_engines_are_found_by_name_and_unknown_ones_refused():
    model = small_mlp()
    assert isinstance(engine("loop", model, Layers.of(model)), LoopEngine)
    assert isinstance(engine("fused", model, Layers.of(model)), FusedEngine)
    assert engine("loop", model, Layers.of(model)).why == "requested"
    with pytest.raises(SalfError, match=r"unknown engine 'fussed'. Did you mean 'fused'.*auto"):
        engine("fussed", model, Layers.of(model))


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}], ids=str)
def test_embeddings_that_look_at_the_whole_batch_take_the_loop(options):
    model = nn.Sequential(nn.Embedding(4, 2, **options), nn.Flatten(), nn.Linear(6, 2))
    tokens = torch.randint(4, (8, 3))
    chosen = engine("auto", model, Layers.of(model), example=tokens)
    assert isinstance(chosen, LoopEngine)
    assert chosen.why.startswith("0 (Embedding) mixes the rows of different users")


def test_auto_takes_the_loop_where_a_forward_pass_moves_a_buffer():
    model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    assert engine("auto", model, Layers.of(model)).why.startswith("0 has a buffer, weight_u")
    probed = engine("auto", model, Layers.of(model), example=torch.randn(8, 4))
    assert probed.why.startswith("the forward pass of Sequential changes the buffer 0.weight_u")


def test_fused_refuses_to_work_in_place_on_the_rows_it_is_given():
    model = nn.Sequential(nn.Hardtanh(inplace=True), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(SalfError, match="modifies its input in place"):
        FusedEngine(model, Layers.of(model))
    fine = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert engine("auto", fine, Layers.of(fine)).name == "fused"


def test_statistics_that_are_in_no_layer_stay():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3))
    rows, before = rows_of(*data(2, 3, (4,), dtype=torch.float32), 3), copy_of(model)
    for kind in ("loop", "fused", "grouped"):
        found = ENGINES[kind](model, Layers.of(model, ["0", "2"]))
        step = found.round(plan_of("salf", [1, 2], 2), 1, {}, rows).step
        assert not any(name.startswith("1.") for name in step.values)
        assert_same(copy_of(model), before)
    named = Layers.of(model, [("0", "1"), "2"])  # buffers can be named, too
    assert named[0].buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert FusedEngine(model, named).name == "fused"
