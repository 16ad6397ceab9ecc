"""What layers cost: against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from salf.core.layers import Layers
from salf.core.work import work
from salf.models import build

ROWS = 3


def per_sample(model, example, given=None):
    layers = given if isinstance(given, Layers) else Layers.of(model, given, example)
    return [(f, b) for f, b in work(model, layers, example).multiply_adds.T.tolist()]


def test_an_mlp_costs_its_matrices_and_twice_that_backwards_but_for_the_input():
    found = per_sample(build("mlp", (1, 28, 28), 10, seed=0), torch.randn(ROWS, 1, 28, 28))
    assert found == [(784 * 32, 784 * 32), (32 * 16, 2 * 32 * 16), (16 * 10, 2 * 16 * 10)]


def test_a_cnn_costs_kernel_times_channels_times_pixels():
    found = per_sample(build("cnn", (1, 28, 28), 10, seed=0), torch.randn(ROWS, 1, 28, 28))
    one, two = 5 * 5 * 1 * 6 * 24 * 24, 5 * 5 * 6 * 6 * 8 * 8
    three, four = 6 * 4 * 4 * 50, 50 * 10
    assert found == [(one, one), (two, 2 * two), (three, 2 * three), (four, 2 * four)]


def test_frozen_modules_cost_their_forward_pass_and_the_signal_that_passes_through():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 7))
    model[0].requires_grad_(False)  # below all layers: no signal
    model[2].requires_grad_(False)
    example = torch.randn(ROWS, 5)
    assert per_sample(model, example) == [(20 + 12 + 6, 12 + 6), (14, 2 * 14)]
    assert work(model, Layers.of(model), example).bytes.tolist() == [4 * 15, 4 * 21]


def test_a_low_rank_adapter_costs_its_own_gradients_only():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 6, bias=False), nn.Linear(6, 2))
    model[1].requires_grad_(False)
    layers = Layers.of(model, [["0", "1"], "2"])
    assert [layer.frozen for layer in layers] == [("1.weight",), ()]
    example = torch.randn(ROWS, 6)
    assert per_sample(model, example, layers) == [(30 + 30, 30 + 30), (12, 24)]
    found = work(model, layers, example)
    assert found.bytes.tolist() == (4 * found.trained).tolist() == [4 * 35, 4 * 14]
    assert found.products.tolist() == [[2, 1], [2, 2]]  # no gradient of what is frozen


def test_large_and_depthwise_convolutions_are_counted_apart():
    """Depthwise ones have as many multiply-adds backward as other kinds, twice those forward."""
    model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 3))
    found = work(model, Layers.of(model), torch.randn(ROWS, 3, 10, 10))
    large, depthwise, small = 36 * 25 * 3 * 8, 16 * 9 * 8, 4 * 9 * 8 * 4
    assert found.forward.tolist() == [large, depthwise, small]
    assert found.backward.tolist() == [large, 2 * depthwise, 2 * small]
    assert found.large.tolist() == [[large, 0, 0], [large, 0, 0]]
    assert found.depthwise.tolist() == [[0, depthwise, 0], [0, 2 * depthwise, 0]]
    assert found.products.tolist() == [[1, 1, 1], [1, 2, 2]]


def test_bytes_are_those_of_an_update_gradients_and_statistics():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].register_buffer("mask", torch.ones(7, dtype=torch.bool))  # flags are not sent
    found = work(model, Layers.of(model), torch.randn(ROWS, 5))
    assert found.bytes.tolist() == [4 * (20 + 4 + 4 + 4 + 4 + 4) + 8, 4 * (8 + 2)]


class Functional(nn.Module):
    """Weights used without a module of their own, one of them twice; a product of activations."""

    def __init__(self):
        super().__init__()
        self.last = nn.Parameter(torch.randn(4, 2))
        self.first = nn.Parameter(torch.randn(6, 4))
        self.twice = nn.Parameter(torch.randn(4, 4))

    def forward(self, value):
        value = value @ self.first
        value = torch.relu(value @ self.twice.T) @ self.twice.T
        outer = value[:, :, None] @ value[:, None, :]  # 4 * 4, after what `twice` did
        return outer.mean(1) @ self.last


def test_work_belongs_to_the_layer_whose_parameter_is_used():
    found = per_sample(Functional(), torch.randn(ROWS, 6), ["first", "twice", "last"])
    assert [forward for forward, _ in found] == [6 * 4, 2 * 4 * 4 + 4 * 4, 4 * 2]
    # Backwards, a product of two activations has the gradients of both.
    assert [backward for _, backward in found] == [6 * 4, 4 * 4 * 4 + 2 * 4 * 4, 2 * 4 * 2]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_counts_its_products_of_activations(dropout):
    tokens, width, heads = 5, 8, 2
    block = nn.TransformerEncoderLayer(width, heads, 16, dropout=dropout, batch_first=True)
    found = per_sample(nn.Sequential(nn.Linear(1, width), block), torch.randn(ROWS, tokens, 1))
    projections = tokens * (4 * width * width + 2 * 16 * width)
    products = 2 * tokens * tokens * width  # queries with keys, and weights with values
    block = projections + products
    assert found == [(tokens * width, tokens * width), (block, 2 * block)]


def test_recurrent_weights_are_found_in_their_list():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, value):
            return self.head(self.inner(value)[1][0])

    (first, _), (second, backward) = per_sample(Reader(), torch.randn(ROWS, 5, 3))
    assert (second, backward) == (4 * 2, 2 * 4 * 2)
    assert first == 5 * 3 * (3 * 4 + 4 * 4)  # steps times gates times both matrices


def test_counting_changes_nothing():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model[0].weight.grad = torch.ones(5, 6)
    drawn = torch.get_rng_state()
    work(model, Layers.of(model), torch.randn(ROWS, 6, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(5, 6))
    assert model[0].bias.grad is None
    assert not any(module._forward_hooks for module in model.modules())
