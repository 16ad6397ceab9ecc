"""Batch norm of many users at once: the bits of each user's own."""

import pytest
import torch
from torch import nn

from reference import assert_same
from salf.common.errors import SalfError
from salf.engines.kernels import UserBatchNorm


def value_and_gradient(module, inputs, signal):
    leaf = inputs.clone().requires_grad_()
    outputs = module(leaf)
    outputs.backward(signal[tuple(slice(n) for n in outputs.shape)])
    return outputs.detach(), leaf.grad


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
