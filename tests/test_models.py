"""The paper's networks: shapes, layers and sizes as literals."""

import sys

import pytest
import torch
from torch import nn

from reference import assert_same, copy_of
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.models import PAPER_MODELS, build, check_fit, cnn, vgg

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "layers", "parameters"),
    [
        ("mlp", MNIST, 3, 25_818),  # 784*32+32 + 32*16+16 + 16*10+10
        ("cnn", MNIST, 4, 6_422),  # 25*6+6 + 6*25*6+6 + 96*50+50 + 50*10+10
        # 3x3 kernels without bias, two numbers a channel of batch norm, 512*10+10. VGG-11:
        # 9 (3*64 + 64*128 + 128*256 + 256*256 + 256*512 + 3*512*512) + 2*2752 + 5130
        ("vgg11", CIFAR, 9, 9_228_362),
        ("vgg13", CIFAR, 11, 9_413_066),
        ("vgg16", CIFAR, 14, 14_724_042),
        ("vgg19", CIFAR, 17, 20_035_018),
    ],
)
def test_layers_and_parameters(name, shape, layers, parameters):
    model = build(name, shape, 10, seed=0)
    assert len(Layers.of(model)) == layers
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, 10)


def test_pooling_before_the_relu_is_the_same_function():
    """The usual order, convolution, ReLU, pooling, gives the same outputs bit for bit."""
    model = cnn(MNIST, 10)
    usual = nn.Sequential(*(model[k] for k in (0, 2, 1, 3, 5, 4, 6, 7, 8, 9)))
    inputs = torch.randn(3, *MNIST)
    assert torch.equal(model(inputs), usual(inputs))


@pytest.mark.parametrize("name", ["cnn", "vgg11", "vgg16"])
@pytest.mark.parametrize("shape", [(784,), (1, 8, 8), (3, 64, 8)])
def test_data_of_the_wrong_shape_are_refused(name, shape):
    with pytest.raises(SalfError, match=rf"'{name}' needs images.*{'x'.join(map(str, shape))}"):
        build(name, shape, 10, seed=0)


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (20,)), ("cnn", (3, 16, 17)), ("vgg11", (1, 64, 40))]
)
def test_other_shapes_and_classes_fit(name, shape):
    assert build(name, shape, 7, seed=0).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_unknown_models_are_refused_with_what_is_allowed():
    with pytest.raises(SalfError, match=r"unknown model 'vgg12'. Allowed: .*vgg11.*vgg13"):
        build("vgg12", CIFAR, 10, seed=0)
    assert set(PAPER_MODELS) == {"mlp", "cnn", "vgg11", "vgg13", "vgg16", "vgg19"}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ---- a model of one's own -------------------------------------------------------------------

OWN = """
import torch
from torch import nn

class Takes(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)
    def forward(self, value):
        return self.layer(value)

class TakesNothing(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

def function(shape):
    return nn.Linear(shape[0], 5)

ready = nn.Linear(4, 2)

class Needs(nn.Module):
    def __init__(self, depth):
        super().__init__()

def no_model():
    return 3

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_models_of_a_test.py").write_text(OWN)
    (tmp_path / "own_models_of_a_test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "own_models_of_a_test_wrong.py").write_text("def (\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models_of_a_test", raising=False)  # another test's
    return "own_models_of_a_test"


def test_a_class_or_function_by_import_path_gets_what_it_takes(own):
    assert build(f"{own}:Takes", (4,), 3, seed=0).layer.weight.shape == (3, 4)
    assert build(f"{own}:TakesNothing", (4,), 3, seed=0).weight.shape == (2, 4)
    assert build(f"{own}:function", (4,), 3, seed=0).weight.shape == (5, 4)


@pytest.mark.parametrize("name", ["mlp", "cnn", "{own}:Takes"])
def test_weights_come_from_the_seed_and_from_nothing_else(own, name):
    name = name.format(own=own)
    torch.manual_seed(1)
    one = weights(build(name, MNIST, 10, seed=7))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = weights(build(name, MNIST, 10, seed=7))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two)
    assert not torch.equal(one, weights(build(name, MNIST, 10, seed=8)))


def test_a_file_in_the_current_folder_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "model_in_this_folder.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", __import__("sys").path.copy())
    assert build("model_in_this_folder:TakesNothing", (4,), 2, seed=0).weight.shape == (2, 4)


def test_a_ready_made_module_is_not_shared_between_runs(own):
    """Two runs in one process must both start from its weights, not the second from the first's."""
    one = build(f"{own}:ready", (4,), 2, seed=0)
    start = one.weight.detach().clone()
    with torch.no_grad():
        one.weight.add_(1)
    assert torch.equal(build(f"{own}:ready", (4,), 2, seed=0).weight, start)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module_here:Net", "'no_such_module_here' in the current folder or on the Python"),
        ("no_such.module:Net", "'no_such' in the current folder or on the Python path"),
        ("{own}_broken:Net", "cannot import the model.*No module named 'no_such_module'.$"),
        ("{own}_wrong:Net", "cannot import the model.*invalid syntax"),
        (
            "{own}:Missing",
            "'Missing'. Allowed: Needs, Takes, TakesNothing, function, no_model, rea",
        ),
        ("{own}:Take", "unknown model of .* 'Take'. Did you mean 'Takes'?"),
        ("{own}:", "unknown model of .* Allowed: Needs"),
        (":Net", "cannot import the model ':Net'"),
        ("{own}:Needs", "cannot create the model.*depth"),
        ("{own}:no_model", "returned a int, not a torch.nn.Module"),
        ("{own}:number", "cannot create the model"),
    ],
)
def test_own_models_that_cannot_be_made_are_refused_in_a_sentence(own, path, says):
    with pytest.raises(SalfError, match=says):
        build(path.format(own=own), (4,), 3, seed=0)


def test_a_model_that_fits_is_left_as_it_was():
    model = vgg(CIFAR, 10).train()
    before = copy_of(model)
    check_fit(model, torch.randn(1, *CIFAR), 10, "vgg11")
    assert model.training
    assert_same(copy_of(model), before)


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        (nn.Linear(5, 10), torch.zeros(2, 4), "'net' does not fit a batch of shape 2x4"),
        (nn.Linear(4, 3), torch.zeros(2, 4), r"outputs of shape \(3,\).*10 classes"),
        (nn.Sequential(nn.Linear(4, 10), nn.Flatten(0)), torch.zeros(2, 4), "one row per sample"),
        (nn.LSTM(4, 10), torch.zeros(2, 4), "must return one tensor"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_in_a_sentence(model, inputs, says):
    with pytest.raises(SalfError, match=says):
        check_fit(model, inputs, 10, "net")
