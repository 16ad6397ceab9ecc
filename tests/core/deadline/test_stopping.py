"""Backpropagation that stops at a deadline: what it completes, and what it leaves behind."""

import gc
import json
import math
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from devices import MODELS, TARGETS, Device, full_gradients, names_of, prepared
from nets import Twice, small_mlp
from salf.common.errors import SalfError
from salf.core.deadline import Backpropagation
from salf.core.deadline.times import Retry, StageTimes
from salf.core.layers import Layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_bit_equal_to_a_full_backwards_at_every_depth(name, dtype):
    _, learned, device, loss = prepared(name, dtype)
    learned.within(None, loss)
    # A full pass costs less where a layer is complete before its turn: its time is no second.
    completion = device.forward
    deadlines = {len(learned.layers) + 1: completion}
    for number in range(len(learned.layers), 0, -1):
        completion += learned.times.usual(number)
        deadlines[number] = completion
    for depth, deadline in deadlines.items():
        model, backpropagation, device, loss = prepared(name, dtype)
        full = full_gradients(model, loss)
        backpropagation.load_state_dict(learned.state_dict())
        partial = backpropagation.within(deadline, loss)
        assert partial.depth == depth
        assert set(partial.gradients) == names_of(backpropagation.layers, depth)
        for key, gradient in partial.gradients.items():
            assert gradient.dtype == dtype
            assert torch.equal(gradient, full[key]), key
        assert partial.total == (0.0 if partial.loss is None else deadline)


@pytest.mark.parametrize("name", ["mlp", "residual", "tied transformer"])
def test_a_layer_that_does_not_fit_is_not_begun(name):
    _, backpropagation, device, loss = prepared(name, costs={2: 3.0, 1: 5.0})
    last = len(backpropagation.layers)
    backpropagation.within(None, loss)
    deadline = device.forward + (last - 2) + 2.9  # all but layers 2 and 1, and most of layer 2
    partial = backpropagation.within(deadline, loss)
    assert partial.depth == 3
    assert partial.total == device.forward + last - 2
    assert sorted(device.passed) == list(range(3, last + 1))


def test_the_times_of_the_forward_pass_and_of_each_completed_layer_are_reported():
    _, backpropagation, _, loss = prepared(forward=7.0, costs={3: 1.0, 2: 3.0, 1: 5.0})
    full = backpropagation.within(None, loss)
    assert (full.depth, full.forward, full.total) == (1, 7.0, 16.0)
    assert full.layers == {3: 1.0, 2: 3.0, 1: 5.0}
    partial = backpropagation.within(11.5, loss)
    assert (partial.depth, partial.forward, partial.total) == (2, 7.0, 11.0)
    assert partial.layers == {3: 1.0, 2: 3.0}
    assert partial.loss is not None
    assert not partial.loss.requires_grad


@pytest.mark.parametrize("deadline", [0.5, 1.0, 1.5, 2.0, 3.5, 4.0, 8.5, 9.0])
def test_the_first_round_knows_nothing_and_ends_late_by_one_layer_at_most(deadline):
    costs = {3: 1.0, 2: 3.0, 1: 5.0}
    _, backpropagation, device, loss = prepared(costs=costs)
    partial = backpropagation.within(deadline, loss)
    begun = device.passed[-1] if device.passed else None
    assert partial.total <= deadline + (device.forward if begun is None else costs[begun])
    assert partial.depth == (4 if begun is None else begun)
    second = backpropagation.within(deadline, loss)
    assert second.total <= max(deadline, device.forward)
    assert second.depth > partial.depth or partial.total <= deadline or partial.depth == 4


def test_a_forward_pass_that_is_clearly_too_late_is_stopped():
    model, backpropagation, device, loss = prepared(forward=0.0)
    for module in (model[0], model[2], model[4]):
        module.register_forward_hook(lambda *_: device.wait(1.0))
    partial = backpropagation.within(0.95, loss)  # a near miss until the second module is run
    assert (partial.depth, partial.total, partial.loss) == (4, 2.0, None)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert backpropagation.within(None, loss).depth == 1


@pytest.mark.parametrize("deadline", [-1.0, -math.inf])
def test_a_deadline_that_is_over_allows_nothing(deadline):
    _, backpropagation, device, loss = prepared()
    assert backpropagation.within(deadline, loss).depth == 4
    assert device.forwards == 0


def test_gradients_from_before_are_neither_added_to_nor_lost():
    model, backpropagation, _, loss = prepared()
    full = full_gradients(model, loss)
    before = {name: torch.full_like(p, 7.0) for name, p in model.named_parameters()}
    for deadline in (None, math.inf, 3.0, -1.0):
        for name, parameter in model.named_parameters():
            parameter.grad = before[name]
        partial = backpropagation.within(deadline, loss)
        for name, parameter in model.named_parameters():
            assert parameter.grad is before[name]
            assert (parameter.grad == 7.0).all()
            assert not parameter._post_accumulate_grad_hooks
        assert all(torch.equal(partial.gradients[name], full[name]) for name in partial.gradients)


def test_gradients_do_not_change_with_the_next_round():
    model, backpropagation, _, loss = prepared()
    partial = backpropagation.within(None, loss)
    kept = {name: gradient.clone() for name, gradient in partial.gradients.items()}
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    backpropagation.within(None, loss)
    assert all(torch.equal(partial.gradients[name], kept[name]) for name in kept)


class Kept:
    def __init__(self, tensor):
        self.tensor = tensor.detach()  # or an output would keep its own node alive


@pytest.mark.parametrize("deadline", [None, 3.0, 2.0, 1.0])
def test_the_graph_is_freed_also_when_its_lower_part_was_never_run(deadline):
    _, backpropagation, _, loss = prepared()
    backpropagation.within(None, loss)
    alive = weakref.WeakSet()

    def pack(tensor):
        kept = Kept(tensor)
        alive.add(kept)
        return kept

    def watched():
        with saved_tensors_hooks(pack, lambda kept: kept.tensor):
            value = loss()
        assert alive
        return value

    gc.disable()  # not even waiting for the collector
    try:
        partial = backpropagation.within(deadline, watched)
        assert not alive
    finally:
        gc.enable()
    assert partial.depth == {None: 1, 3.0: 2, 2.0: 3, 1.0: 4}[deadline]


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, signal):
        raise ZeroDivisionError("not ours")


def test_an_error_in_the_backward_pass_is_passed_on_and_leaves_the_model_as_it_was():
    model, backpropagation, _, loss = prepared()
    handle = model[0].register_forward_hook(lambda *args: Broken.apply(args[2]))
    before = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = before[name]
    with pytest.raises(ZeroDivisionError, match="not ours"):
        backpropagation.within(None, loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is before[name]
        assert not parameter._post_accumulate_grad_hooks
    handle.remove()
    assert backpropagation.within(None, loss).depth == 1


def test_frozen_parameters_have_no_gradient_and_are_not_waited_for():
    model, backpropagation, _, loss = prepared()
    full = full_gradients(model, loss)
    model[4].requires_grad_(False)  # layer 3, the last
    model[2].bias.requires_grad_(False)
    model[0].requires_grad_(False)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    first = backpropagation.within(None, loss)
    assert first.depth == 1
    assert set(first.gradients) == {"2.weight"}
    assert torch.equal(first.gradients["2.weight"], full["2.weight"])
    assert (first.layers[3], first.layers[1]) == (0.0, 0.0)
    # The last layer is complete without any work, so it is there however short the time.
    assert backpropagation.within(1.5, loss).depth == 3


def test_a_model_that_is_all_frozen_is_done_after_the_forward_pass():
    model, backpropagation, device, loss = prepared()
    model.requires_grad_(False)
    partial = backpropagation.within(5.0, loss)
    assert (partial.depth, partial.gradients, device.passed) == (1, {}, [])


class Remembers(torch.autograd.Function):
    """Has an attribute that autograd's own nodes have at the leaves, where it means something."""

    @staticmethod
    def forward(ctx, value, parameter):
        ctx.variable = parameter[0]
        return value.view_as(value)

    @staticmethod
    def backward(ctx, signal):
        return signal, None


class Ignores(torch.autograd.Function):
    """Adds a parameter and gives it no gradient, which autograd treats as a zero."""

    @staticmethod
    def forward(ctx, value, parameter):
        return value + parameter.sum() * 0

    @staticmethod
    def backward(ctx, signal):
        return signal, None


@pytest.mark.parametrize("layer", [Remembers, Ignores])
def test_a_parameter_without_a_gradient_gets_zeros_and_is_not_waited_for(layer):
    model, backpropagation, device, _ = prepared()
    inputs, last = MODELS["mlp"][1], model[4]

    def loss():  # the last layer is left out
        device.wait(1.0)
        given = [last.weight] if layer is Remembers else last.weight
        return F.cross_entropy(layer.apply(model[:4](inputs), given), TARGETS)

    backpropagation.within(None, loss)
    partial = backpropagation.within(2.5, loss)
    assert partial.depth == 2
    assert set(partial.gradients) == names_of(backpropagation.layers, 2)
    assert not partial.gradients["4.weight"].any()
    assert partial.gradients["2.weight"].any()
    assert partial.layers == {3: 0.0, 2: 1.0}


def test_a_loss_without_a_way_back_to_the_model_is_refused():
    _, backpropagation, _, loss = prepared()
    other = small_mlp().float()
    with torch.no_grad(), pytest.raises(SalfError, match="depends on no trainable parameter"):
        backpropagation.within(None, loss)
    with pytest.raises(SalfError, match="depends on no trainable parameter"):
        backpropagation.within(None, lambda: other(MODELS["mlp"][1]).sum())


def test_only_the_model_gets_gradients():
    """Not the input, nor what else the loss depends on."""
    _, backpropagation, device, _ = prepared()
    inputs = MODELS["mlp"][1].clone().requires_grad_()
    scale = torch.ones((), requires_grad=True)
    backpropagation.within(None, lambda: scale * device.loss(inputs)())
    assert inputs.grad is None
    assert scale.grad is None


def test_a_module_used_twice_is_complete_only_with_its_first_use():
    """Half its gradient is ready early; to count that half would be wrong."""
    torch.manual_seed(0)
    model = Twice()
    inputs = MODELS["mlp"][1]
    layers = Layers.of(model, example=inputs)
    device = Device(model, layers)
    full = full_gradients(model, device.loss(inputs))
    backpropagation = Backpropagation(model, layers, now=device.now)
    partial = backpropagation.within(None, device.loss(inputs))
    assert partial.layers == {2: 2.0, 1: 1.0}  # the second use comes before layer 2
    assert torch.equal(partial.gradients["twice.weight"], full["twice.weight"])
    partial = backpropagation.within(3.5, device.loss(inputs))
    assert partial.depth == 2
    assert set(partial.gradients) == {"middle.weight", "middle.bias"}


class Branches(nn.Module):
    """Two ways from input to output; autograd takes the one that was computed last first."""

    def __init__(self):
        super().__init__()
        self.early = nn.Linear(4, 3)
        self.late = nn.Linear(4, 3)

    def forward(self, value):
        return self.early(value) + self.late(value)


def test_a_layer_complete_before_its_turn_counts_when_those_above_it_are_complete():
    torch.manual_seed(0)
    model = Branches()
    inputs = MODELS["mlp"][1]
    layers = Layers.of(model, ["late", "early"])  # early is the last layer, and late comes first
    device = Device(model, layers, costs={1: 2.0, 2: 3.0})
    full = full_gradients(model, device.loss(inputs))
    backpropagation = Backpropagation(model, layers, now=device.now)
    partial = backpropagation.within(None, device.loss(inputs))
    assert device.passed == [1, 2]
    assert partial.depth == 1
    assert partial.layers == {2: 5.0, 1: 0.0}
    assert all(torch.equal(partial.gradients[key], full[key]) for key in full)
    # Layer 1 alone would be complete by now, and is nothing without layer 2.
    assert backpropagation.within(4.0, device.loss(inputs)).depth == 3


def test_activations_that_are_computed_again_change_nothing():
    model, backpropagation, device, _ = prepared()
    inputs = MODELS["mlp"][1]

    def loss():
        device.wait(1.0)
        value = checkpoint(model[:3], inputs, use_reentrant=False)
        return F.cross_entropy(model[3:](value), TARGETS)

    full = full_gradients(model, loss)
    backpropagation.within(None, loss)
    partial = backpropagation.within(3.5, loss)
    assert partial.depth == 2
    assert all(torch.equal(partial.gradients[n], full[n]) for n in partial.gradients)


def test_an_accelerator_is_waited_for_at_each_layer(monkeypatch):
    """It says at once that it is done; the time has passed only when it was waited for."""
    _, backpropagation, device, loss = prepared(forward=2.0)
    queued = []

    def synchronize():
        device.seconds += sum(queued)
        queued.clear()

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    monkeypatch.setattr(device, "pass_back", lambda number: queued.append(device.costs[number]))
    partial = backpropagation.within(None, loss)
    assert partial.layers == {3: 1.0, 2: 1.0, 1: 1.0}
    assert backpropagation.within(4.5, loss).depth == 2


def test_a_new_process_each_round_learns_as_one_process_does():
    """Flower starts one for every message."""
    one = prepared(forward=3.0)[1:]
    many = prepared(forward=3.0)[1:]
    deadlines = [*[10.0] * 3, *[3.5] * 300]
    for deadline in deadlines:
        learned = many[0].state_dict()
        many[0].times, many[0].retry = StageTimes(3), Retry()
        many[0].load_state_dict(json.loads(json.dumps(learned)))
        ours, alone = (side[0].within(deadline, side[2]) for side in (many, one))
        assert (ours.depth, ours.total) == (alone.depth, alone.total)
    assert 10 < one[1].forwards < 100  # some of them tries


def test_learned_times_of_other_layers_are_refused_and_change_nothing():
    _, backpropagation, _, loss = prepared()
    backpropagation.within(None, loss)
    before = backpropagation.state_dict()
    for other in (before | {"9": [1.0]}, {"0": [1.0]}):
        with pytest.raises(SalfError, match="not those of 3 layers"):
            backpropagation.load_state_dict(other)
    assert backpropagation.state_dict() == before
