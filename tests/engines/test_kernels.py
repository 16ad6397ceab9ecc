"""The stand-ins for PyTorch's own modules: the same bits."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reference import assert_same
from salf.common.errors import SalfError
from salf.engines import kernels
from salf.engines.kernels import HalvingMaxPool, ThinConvolution, UserBatchNorm, stand_in


@pytest.fixture(scope="module", autouse=True)
def small_pools():
    """Pools of any size are stood in for, not only those large enough for it to pay."""
    before, kernels.LEAST_POOLED = kernels.LEAST_POOLED, 0
    yield
    kernels.LEAST_POOLED = before


def value_and_gradient(module, inputs, signal):
    leaf = inputs.clone().requires_grad_()
    outputs = module(leaf)
    outputs.backward(signal[tuple(slice(n) for n in outputs.shape)])
    return outputs.detach(), leaf.grad


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 9),
    st.integers(2, 9),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["distinct", "ties", "all equal"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_halving_max_pool_is_max_pool_2d_of_2(rows, channels, h, w, dtype, kind, last, seed):
    """Bit for bit in value and gradient: odd sizes, ties, either memory layout."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, channels, h, w, generator=generator, dtype=dtype)
    if kind == "ties":
        inputs = inputs.round()  # a handful of values, ties everywhere
    elif kind == "all equal":
        inputs = torch.ones_like(inputs)
    if last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    signal = torch.randn(rows, channels, h, w, generator=generator, dtype=dtype)
    found = value_and_gradient(HalvingMaxPool(nn.MaxPool2d(2)), inputs, signal)
    wanted = value_and_gradient(nn.MaxPool2d(2), inputs, signal)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d((2, 2)), nn.MaxPool2d(2, 2), nn.MaxPool2d(2, (2, 2))]
)
def test_pools_that_halve_are_stood_in_for(pool):
    assert isinstance(stand_in(pool), HalvingMaxPool)


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((2, 1)),
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 16, 3),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 1, padding=1),
        nn.Conv2d(3, 4, 3, dtype=torch.complex64),
    ],
    ids=str,
)
def test_other_modules_run_themselves(module):
    assert stand_in(module) is module


NORMS = {
    "1d": (nn.BatchNorm1d, (5,)),
    "1d of sequences": (nn.BatchNorm1d, (5, 7)),
    "2d": (nn.BatchNorm2d, (5, 3, 4)),
    "3d": (nn.BatchNorm3d, (5, 2, 3, 2)),
}
OPTIONS = [
    {},
    {"momentum": 0.3, "eps": 1e-2},
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", NORMS)
def test_user_batch_norm_is_each_users_own_batch_norm(kind, options):
    """Outputs, input gradients and moved statistics bit for bit; weights' gradients are sums."""
    make, shape = NORMS[kind]
    torch.manual_seed(0)
    users, rows = 3, 4
    norm = make(5, **options)
    with torch.no_grad():
        for tensor in (*norm.parameters(), *norm.buffers()):
            tensor.add_(torch.rand(tensor.shape).to(tensor.dtype) + 2)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    inputs, signal = torch.randn(2, users * rows, *shape)
    inputs = inputs * 3 + 1
    mine = UserBatchNorm(norm)
    mine.users = users
    found, gradient = value_and_gradient(mine, inputs, signal)
    assert_same(dict(norm.state_dict()), before)

    sums = {name: torch.zeros_like(value) for name, value in norm.named_parameters()}
    for user in range(users):
        own = slice(user * rows, (user + 1) * rows)
        alone = make(5, **options)
        alone.load_state_dict(before)
        wanted = value_and_gradient(alone, inputs[own], signal[own])
        assert torch.equal(found[own], wanted[0])
        assert torch.equal(gradient[own], wanted[1])
        for name, value in alone.named_parameters():
            sums[name] += value.grad
        for name, value in alone.named_buffers():
            moved = mine.moved[name] if value.dim() == 0 else mine.moved[name][user]
            assert torch.equal(moved, value - before[name]), name
    for name, value in norm.named_parameters():
        torch.testing.assert_close(value.grad, sums[name], rtol=1e-6, atol=1e-6)
    assert bool(mine.moved) == (norm.running_mean is not None)


def test_passes_without_a_graph_leave_the_moved_statistics_of_the_last_one_with_a_graph():
    mine = UserBatchNorm(nn.BatchNorm1d(5))
    mine.users = 2
    mine(torch.randn(6, 5))
    kept = mine.moved["running_mean"].clone()
    with torch.no_grad():
        mine(torch.randn(8, 5))
    assert torch.equal(mine.moved["running_mean"], kept)
    assert len(kept) == 2


def test_one_value_per_channel_is_refused():
    mine = UserBatchNorm(nn.BatchNorm1d(5))
    mine.users = 4
    with pytest.raises(SalfError, match="more than one value per channel"):
        mine(torch.randn(4, 5))


CONVOLUTIONS = {
    "5x5": nn.Conv2d(6, 6, 5),
    "padded": nn.Conv2d(3, 8, 3, padding=1),
    "rectangle": nn.Conv2d(2, 4, (3, 5), padding=(2, 0), bias=False),
    "dilated": nn.Conv2d(3, 5, 3, padding=1, dilation=2),
    "1x1": nn.Conv2d(3, 2, 1),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_thin_convolution_has_the_gradients_of_the_convolution(kind):
    convolution = copy.deepcopy(CONVOLUTIONS[kind]).double()
    thin = stand_in(convolution)
    assert isinstance(thin, ThinConvolution)
    torch.manual_seed(0)
    inputs = torch.randn(4, convolution.in_channels, 9, 11, dtype=torch.float64, requires_grad=True)
    wanted, found = convolution(inputs), thin(inputs)
    assert torch.equal(found, wanted)
    signal, leaves = torch.randn_like(wanted), [inputs, *convolution.parameters()]
    of_wanted = torch.autograd.grad(wanted, leaves, signal)
    of_found = torch.autograd.grad(found, leaves, signal)
    for mine, theirs in zip(of_found, of_wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_thin_convolution_has_the_attributes_of_the_convolution():
    """A block may use its convolution's weight itself, as weight standardisation does."""
    convolution = nn.Conv2d(3, 4, 3)
    thin = stand_in(convolution)
    assert thin.weight is convolution.weight
    assert thin.kernel_size == (3, 3)
    with pytest.raises(AttributeError, match="nothing"):
        _ = thin.nothing


def test_a_thin_convolution_runs_as_it_is_under_autocast_and_with_hooks():
    convolution = nn.Conv2d(3, 4, 3)
    thin = stand_in(convolution)
    inputs = torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = convolution(inputs).float().sum(), thin(inputs).float().sum()
    assert torch.equal(
        torch.autograd.grad(found, inputs)[0], torch.autograd.grad(wanted, inputs)[0]
    )
    convolution.register_forward_hook(lambda module, given, outputs: 2 * outputs)
    convolution.register_full_backward_hook(lambda module, below, above: (3 * below[0],))
    found, wanted = (torch.autograd.grad(m(inputs).sum(), inputs)[0] for m in (thin, convolution))
    assert torch.equal(found, wanted)
