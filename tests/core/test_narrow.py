"""The sub-network's forward pass against a module that is built with fewer units."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from salf.common.errors import SalfError
from salf.core.narrow import subnetwork
from salf.models import cnn, mlp, vgg


class Scaler(nn.Module):
    def forward(self, value):
        return value / 0.5


def half_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 3, 5),
        Scaler(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 3, 5),
        Scaler(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 25),
        Scaler(),
        nn.ReLU(),
        nn.Linear(25, 10),
    )


def half_vgg11():
    modules, before = [], 3
    for channels in (32, "M", 64, "M", 128, 128, "M", 256, 256, "M", 256, 256, "M"):
        if channels == "M":
            modules.append(nn.MaxPool2d(2))
            continue
        modules += [nn.Conv2d(before, channels, 3, padding=1, bias=False), Scaler()]
        modules += [nn.BatchNorm2d(channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(256, 10))


PAPER = {
    "cnn": (lambda: cnn((1, 28, 28), 10), half_cnn, (4, 1, 28, 28), 2e-14),
    "vgg11": (lambda: vgg((3, 32, 32), 10), half_vgg11, (4, 3, 32, 32), 1e-10),
}


def pairs(full, small):
    """The tensors of both networks in order; both list parameters and buffers module by module."""
    for kind in ("named_parameters", "named_buffers"):
        yield from zip(getattr(full, kind)(), getattr(small, kind)(), strict=True)


@pytest.mark.parametrize("name", PAPER)
def test_the_narrow_forward_and_its_gradients_are_a_smaller_modules(name):
    """To rounding, in double precision: outputs, loss gradients and moved running statistics."""
    make, halve, shape, tolerance = PAPER[name]
    torch.manual_seed(0)
    full, small = make().double(), halve().double()
    with torch.no_grad():
        for (_, whole), (_, part) in pairs(full, small):
            part.copy_(whole[tuple(slice(n) for n in part.shape)])
    narrow = subnetwork(full, 0.5)
    weights = {**dict(full.named_parameters()), **dict(full.named_buffers())}
    leaves = narrow.leaves(weights)
    inputs, target = torch.randn(shape, dtype=torch.float64), torch.tensor([1, 2, 3, 4])

    found = functional_call(full, narrow.forward_view(leaves), (inputs,))
    wanted = small(inputs)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)

    nn.functional.cross_entropy(found, target).backward()
    nn.functional.cross_entropy(wanted, target).backward()
    assert set(leaves) == set(weights)
    for (key, _), (_, part) in pairs(full, small):
        assert leaves[key].shape == part.shape, key
        if part.requires_grad:
            limit = tolerance * 100 * part.grad.abs().max().item()
            torch.testing.assert_close(leaves[key].grad, part.grad, rtol=0, atol=limit)
        else:
            torch.testing.assert_close(leaves[key], part, rtol=1e-10, atol=1e-12)


def test_the_share_of_units_is_rounded_up():
    held = subnetwork(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), 0.25).held
    assert held["0.weight"] == (slice(2), slice(3))
    assert held["1.weight"] == (slice(2), slice(2))


def test_leaves_are_copies_with_the_gradients_flags_of_the_full_tensors():
    model = mlp((4,), 2)
    model[1].bias.requires_grad_(False)
    weights = dict(model.named_parameters())
    leaves = subnetwork(model, 0.5).leaves(weights)
    assert not leaves["1.bias"].requires_grad
    assert leaves["1.weight"].requires_grad
    assert leaves["1.weight"].is_leaf
    with torch.no_grad():
        leaves["1.weight"].fill_(7)
    assert not (model[1].weight == 7).any()


class OwnForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, value):
        return self.layer(value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (OwnForward(), "OwnForward is not one"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "'1'.*LayerNorm"),
        (nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2)), "'1'.*PReLU"),
        (nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 2)), "'0'.*Embedding"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)), "'0'"),
        (nn.Sequential(OwnForward(), nn.Linear(2, 2)), "'0'.*OwnForward"),
    ],
)
def test_what_cannot_be_narrowed_is_refused_by_name(model, says):
    with pytest.raises(SalfError, match=says):
        subnetwork(model, 0.5)


@pytest.mark.parametrize("width", [0, 1.01, -1, float("nan")])
def test_impossible_widths_are_refused(width):
    with pytest.raises(SalfError, match=r"in \(0, 1\]"):
        subnetwork(mlp((4,), 2), width)


NORMS_IN_ODD_PLACES = {
    "norm before the first layer": (
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)),
        (5, 4),
    ),
    "norm after the flatten": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 2)),
        (5, 1, 4, 4),
    ),
    "norm without parameters": (
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2)),
        (5, 4),
    ),
}


@pytest.mark.parametrize("name", NORMS_IN_ODD_PLACES)
def test_batch_norm_is_narrowed_wherever_it_stands(name):
    model, shape = NORMS_IN_ODD_PLACES[name]
    narrow = subnetwork(model, 0.5)
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    view = narrow.forward_view(narrow.leaves(weights))
    assert functional_call(model, view, (torch.randn(shape),)).shape == (5, 2)
