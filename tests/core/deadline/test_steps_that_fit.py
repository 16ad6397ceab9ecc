"""A user does as many local steps as fit: a forward pass and each of 3 layers take a second."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from devices import TARGETS, prepared
from reference import assert_close, copy_of, gradients
from salf.core.layers import Layers
from salf.live.inspection import Inspection
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Task, decode, encode, size_of
from salf.live.user import User
from salf.problem import Problem

RATE = 0.5


def user_on_a_device(**more):
    model, backpropagation, device, loss = prepared(dtype=torch.float64)
    layers = backpropagation.layers
    user = User("a", Problem(model, layers), lambda round, step: loss(), now=device.now, **more)
    return user, device, copy_of(model)


def wanted(model, inputs, weights, steps, depth, layers):
    total, own = {}, dict(weights)
    for step in range(1, steps + 1):
        found = gradients(model, inputs, TARGETS, F.cross_entropy, own)
        for name, gradient in found.items():
            if step < steps or layers.index_of[name] + 1 >= depth:
                total[name] = total.get(name, 0) + gradient
            own[name] = own[name] - RATE * gradient
    return total


@pytest.mark.parametrize(
    ("deadline", "steps", "depth"),
    [
        (None, 5, 1),
        (20.0, 5, 1),
        (19.5, 5, 2),
        (12.0, 3, 1),
        (10.5, 3, 3),
        (9.5, 2, 1),  # the third step has time for its forward pass, but for no layer
        (8.5, 2, 1),
        (3.5, 1, 2),
    ],
)
def test_a_user_does_the_steps_that_fit_and_sends_the_sum_of_their_gradients(
    deadline, steps, depth
):
    user, device, weights = user_on_a_device()
    user.train(Task(1, None, weights))  # after which it knows its speed
    began = device.now()
    update = user.train(Task(2, deadline, weights, 5, RATE))
    assert (update.steps, update.planned, update.depth) == (steps, 5, depth)
    assert deadline is None or device.now() - began <= deadline
    layers = user.backpropagation.layers
    model, _, _, _ = prepared(dtype=torch.float64)
    inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    assert_close(dict(update.tensors), wanted(model, inputs, weights, steps, depth, layers), 1e-12)
    wire = decode(encode(update), size_of(weights))
    Inspection(layers, weights_of(model), local_steps=5).check(wire)


def weights_of(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_a_step_that_does_not_fit_is_never_tried_though_the_first_one_is_now_and_then():
    user, device, weights = user_on_a_device()
    for round in range(1, 60):
        began = device.now()
        update = user.train(Task(round, 5.5, weights, 3, RATE))
        if round > 1:
            assert (update.steps, update.depth) == (1, 1)
            assert device.now() - began <= 5.5


def test_a_users_own_number_of_steps_replaces_the_servers():
    user, _, weights = user_on_a_device(steps=2)
    update = user.train(Task(1, None, weights, 5, RATE))
    assert (update.steps, update.planned) == (2, 2)


def test_running_statistics_of_layers_that_the_last_step_missed_are_those_of_the_steps_before():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    layers = Layers.of(model, ["0", "1", "2"])
    start = copy_of(model)
    inputs, targets = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    user = User("a", Problem(model, layers), lambda *_: F.cross_entropy(model(inputs), targets))

    class Stops:
        """Backpropagation whose second step stops at depth 3."""

        layers = user.backpropagation.layers

        def __init__(self, real):
            self.real, self.calls = real, 0

        def within(self, deadline, loss, more):
            self.calls += 1
            assert more == (self.calls > 1)
            found = self.real.within(None, loss)
            if self.calls == 2:
                kept = {n: g for n, g in found.gradients.items() if n.startswith("2")}
                return type(found)(3, kept, found.loss, 0.0, {}, 0.0)
            return found

    user.backpropagation = Stops(user.backpropagation)
    update = user.train(Task(1, 1.0, start, 3, RATE))
    assert (update.steps, update.depth) == (2, 3)
    assert update.tensors["0.num_batches_tracked"] == 1
    assert update.tensors["2.num_batches_tracked"] == 2
    first = gradients(model, inputs, targets, F.cross_entropy, start)
    assert_close({"m": update.tensors["0.running_mean"]}, {"m": first["0.running_mean"]}, 1e-12)
    assert_close({"w": update.tensors["0.weight"]}, {"w": first["0.weight"]}, 1e-12)


def test_the_server_counts_a_user_with_a_complete_step_in_every_layer():
    user, _, weights = user_on_a_device()
    model, _, _, _ = prepared(dtype=torch.float64)
    server = LiveServer(
        Problem(model, user.backpropagation.layers), 0.1, ServerSettings(local_steps=3)
    )
    user.train(Task(1, None, weights))
    server.open(["a", "silent"])
    server.take("a", encode(user.train(Task(1, 6.5, weights, 3, RATE))))
    row = server.close()
    assert (row.reached, row.rejected) == ((1, 1, 1), ())
    assert row.steps == {"a": (2, 3), "silent": (1, 3)}
    assert not row.finished("a")
    assert row.delivered("a")
    assert not row.delivered("silent")
