"""The user's side: what it sends is what a server may use, and only that leaves it."""

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.nn import functional as F

from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.live.inspection import Inspection
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Task, decode, encode, encode_model, size_of
from salf.live.user import User, take_over
from salf.problem import Problem


def network():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)
    )


def weights_of(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class Clock:
    """Every look at it takes a while, so that deadlines of some looks stop somewhere."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        self.time += 1.0
        return self.time


def user(model, **more):
    inputs = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 1, 2, 0])
    return User(
        "a", Problem.of(model), lambda t, step: F.cross_entropy(model(inputs), labels), **more
    )


def test_an_update_passes_the_servers_inspection_and_moves_buffers_like_their_layer():
    server_model, own = network(), network()
    with torch.no_grad():
        server_model[0].weight.mul_(2.0)  # so the server's model is not the user's own
    weights = load(encode_model(weights_of(server_model)))
    update = user(own).train(Task(7, None, weights))
    assert update.depth == 1
    wire = decode(encode(update), size_of(weights_of(server_model)))
    Inspection(Layers.of(server_model), weights_of(server_model)).check(wire)

    mirror = network()
    take_over(mirror, weights)
    mirror[1].momentum = own[1].momentum
    expected = user(mirror)
    loss = expected._loss(7, 1)
    loss.backward()
    assert update.loss == pytest.approx(loss.item())
    for name, parameter in mirror.named_parameters():
        torch.testing.assert_close(wire.tensors[name], parameter.grad)
    moved = mirror[1].running_mean - server_model[1].running_mean
    torch.testing.assert_close(wire.tensors["1.running_mean"], moved)
    assert int(wire.tensors["1.num_batches_tracked"]) == 1


class Masked(nn.Module):
    """As attention has it: what must not be seen is minus infinity."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, inputs):
        return self.linear(inputs) @ (self.linear.weight + self.mask).softmax(1)


def test_a_model_with_an_infinite_mask_trains():
    model, own = (nn.Sequential(Masked(), nn.Linear(3, 2)) for _ in range(2))
    server = LiveServer(Problem.of(model), 0.1)
    labels = torch.tensor([0, 1])
    user = User("a", Problem.of(own), lambda t, step: F.cross_entropy(own(torch.eye(2, 3)), labels))
    before = model[0].linear.weight.detach().clone()
    for t in (1, 2, 3):
        server.open(["a"])
        server.take("a", encode(user.train(Task(t, None, server.weights))))
        assert server.close().rejected == ()
    assert not torch.equal(model[0].linear.weight, before)
    assert torch.equal(model[0].mask, own[0].mask)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_variance_stays_positive_though_steps_are_divided_by_1_minus_p(momentum):
    model, own = (
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=momentum)) for _ in range(2)
    )
    server = LiveServer(Problem.of(model), 0.1, ServerSettings(unreached=[0.5]))
    inputs, labels = 0.01 * torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    user = User("a", Problem.of(own), lambda t, step: F.cross_entropy(own(inputs), labels))
    server.open(["a"])
    server.take("a", encode(user.train(Task(1, None, server.weights))))
    server.close()
    assert (model[1].running_var > 0).all()
    torch.testing.assert_close(model[1].running_var, own[1].running_var)


def test_taking_over_the_model_counts_against_the_deadline():
    model = network()
    weights = weights_of(network())
    assert (
        user(model, now=Clock()).train(Task(1, 1.0, weights)).depth == 3
    )  # a look before, one after
    update = user(model, now=Clock()).train(Task(1, 100.0, weights))
    assert update.depth == 1
    assert update.seconds > 2


def test_a_user_without_time_for_a_layer_sends_none():
    update = user(network()).train(Task(1, 0.0, weights_of(network())))
    assert (update.depth, dict(update.tensors)) == (3, {})
    model = network()
    server = LiveServer(Problem.of(model), 0.1)
    server.open(["a"])
    server.take("a", encode(update))
    row = server.close()
    assert (row.depths, row.rejected, row.silent) == ({"a": 3}, (), ())


@pytest.mark.parametrize("change", ["more", "fewer", "shape"])
def test_another_model_is_refused_in_a_sentence(change):
    weights = weights_of(network())
    if change == "fewer":
        del weights["4.bias"]
    else:
        weights["4.bias" if change == "shape" else "5.weight"] = torch.zeros(4)
    with pytest.raises(SalfError, match="trains another model"):
        user(network()).train(Task(1, None, weights))
