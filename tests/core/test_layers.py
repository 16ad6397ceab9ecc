"""How a module is seen as layers: every default rule, and every way to say it by hand."""

import pytest
import torch
from torch import nn

import salf
from devices import Block, ResidualNetwork
from salf.common.errors import SalfError
from salf.core.layers import Layer, Layers, parse_layers
from salf.models import build


def named(layers):
    return [layer.name for layer in layers]


class OutOfOrder(nn.Module):
    """Defined last to first, and one module of it used twice."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.twice = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.embed = nn.Linear(3, 4)

    def forward(self, value):
        value = self.embed(value)
        value = torch.tanh(self.twice(value))
        value = self.norm(value)
        return self.head(torch.tanh(self.twice(value)))


# ---- a Sequential ---------------------------------------------------------------------------


def seq(*modules):
    """Modules in a Sequential; two numbers are a linear layer."""
    return nn.Sequential(*(nn.Linear(*m) if isinstance(m, tuple) else m for m in modules))


def used_again():
    again = nn.Linear(4, 4)
    return seq(again, nn.ReLU(), (4, 4), again, (4, 1))


def tied():
    model = seq((4, 4), (4, 4))
    model[1].weight = model[0].weight
    return model


def partly_frozen():
    model = seq((4, 4), (4, 4), nn.BatchNorm1d(4), (4, 1))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    return model


def norm_frozen():
    model = seq((4, 4), nn.BatchNorm1d(4), (4, 1))
    model[1].requires_grad_(False)
    return model


TRACKED = ("running_mean", "running_var", "num_batches_tracked")
# (model, its layers by name: what they own; a * stands for weight and bias, or for statistics)
SEQUENTIAL = {
    "a layer for each child with parameters": (
        lambda: seq((2, 3), nn.ReLU(), (3, 1)),
        {"0": "0.*", "2": "2.*"},
    ),
    "nested sequentials are opened": (
        lambda: seq((2, 3), seq((3, 3), seq(nn.ReLU(), (3, 3))), (3, 1)),
        {"0": "0.*", "1.0": "1.0.*", "1.1.1": "1.1.1.*", "2": "2.*"},
    ),
    "norms join the layer before them": (
        lambda: seq((2, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), (4, 1)),
        {"0": "0.* 2.* 3.* ~2", "4": "4.*"},
    ),
    "other norms too": (
        lambda: seq((2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True), (4, 1)),
        {"0": "0.* 1.* 2.*", "3": "3.*"},
    ),
    "a norm in front is a layer": (
        lambda: seq(nn.BatchNorm1d(2), (2, 1)),
        {"0": "0.* ~0", "1": "1.*"},
    ),
    "statistics of a norm without parameters": (
        lambda: seq((2, 4), nn.BatchNorm1d(4, affine=False), (4, 1)),
        {"0": "0.* ~1", "2": "2.*"},
    ),
    "and in front": (
        lambda: seq(nn.BatchNorm1d(2, affine=False), (2, 4), (4, 1)),
        {"1": "1.* ~0", "2": "2.*"},
    ),
    "another composite child is one layer": (
        lambda: seq((2, 4), Block(4), (4, 1)),
        {"0": "0.*", "1": "1.convolution.weight 1.norm.* ~1.norm", "2": "2.*"},
    ),
    "a module in two places belongs to the first": (
        used_again,
        {"0": "0.*", "2": "2.*", "4": "4.*"},
    ),
    "tied weights belong to the first": (tied, {"0": "0.*", "1": "1.bias"}),
    "what is frozen is in no layer": (partly_frozen, {"1": "1.bias 2.* ~2", "3": "3.*"}),
    "statistics of a frozen norm stay": (norm_frozen, {"0": "0.*", "2": "2.*"}),
}


def owned(text):
    """The names that a row of the table stands for."""
    for word in text.split():
        kinds = TRACKED if word[0] == "~" else ("weight", "bias") if word[-1] == "*" else ("",)
        yield from (word.strip("~*").rstrip(".") + f".{kind}" * bool(kind) for kind in kinds)


@pytest.mark.parametrize(("make", "wanted"), SEQUENTIAL.values(), ids=SEQUENTIAL)
def test_the_default_layers_of_a_sequential(make, wanted):
    found = Layers.of(make())
    assert {layer.name: {*layer.parameters, *layer.buffers} for layer in found} == {
        name: set(owned(text)) for name, text in wanted.items()
    }
    assert named(found) == list(wanted)


def test_frozen_parameters_are_named_and_have_no_size():
    layers = Layers.of(partly_frozen())
    assert layers[0].frozen == ("1.weight",)
    assert layers[0].size == 12
    assert named(Layers.of(partly_frozen(), ["0", ["1", "2"], "3"])) == ["1 + 2", "3"]


@pytest.mark.parametrize("given", [None, ["0", "1"], []])
def test_a_model_without_parameters_that_train_is_refused(given):
    model = seq((4, 4), (4, 1)) if given != [] else seq(nn.ReLU())
    with pytest.raises(SalfError, match=r"no parameters that train.*requires_grad=True"):
        Layers.of(model.requires_grad_(False), given or None)


@pytest.mark.parametrize(
    ("name", "count"), [("mlp", 3), ("cnn", 4), ("vgg11", 9), ("vgg13", 11), ("vgg19", 17)]
)
def test_the_papers_models_have_the_papers_layers(name, count):
    model = build(name, (3, 32, 32), 10, seed=0)
    layers = Layers.of(model)
    assert len(layers) == count
    assert sorted(layers.index_of) == sorted(model.state_dict())


# ---- any other module -----------------------------------------------------------------------


def test_looking_leaves_a_model_as_it_was_even_when_the_forward_pass_fails():
    class Noisy(OutOfOrder):
        fails = False

        def forward(self, value):
            value = super().forward(torch.dropout(value, 0.5, train=True))
            if self.fails:
                raise RuntimeError("no")
            return value

    model = Noisy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    for given in (None, ["embed", "twice", "norm", "head"]):
        Layers.of(model, given, torch.ones(3, 3))
    model.fails = True
    with pytest.raises(RuntimeError, match="no"):
        Layers.of(model, example=torch.randn(3, 3, generator=torch.Generator()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training
    hooks = [(*m._forward_pre_hooks, *m._backward_hooks) for m in model.modules()]
    assert not any(hooks)
    assert all(p.grad is None and not p._backward_hooks for p in model.parameters())


def test_without_an_example_it_says_what_to_give():
    with pytest.raises(SalfError, match=r"OutOfOrder.*example input.*layers by name"):
        Layers.of(OutOfOrder())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, value):
        mixed, _ = self.attention(value, value, value)
        return self.head(self.norm(value + mixed).mean(1))


class TiedLanguageModel(nn.Module):
    """The last module is called last, but its weight is used first."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(4, 6)
        self.encoder = nn.Embedding(6, 4)
        self.middle = nn.Linear(4, 4)
        self.encoder.weight = self.decoder.weight

    def forward(self, value):
        return self.decoder(self.middle(self.encoder(value)))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, value):
        return self.used(value)


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.layer = nn.Linear(2, 2)

    def forward(self, value):
        return self.layer(value) * self.scale


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, value):
        return value * self.weight


class Functional(nn.Module):
    """Parameters of its own before and between its modules, one of which is never called."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 3)
        self.gate, self.shift = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
        self.first = nn.Linear(2, 2)

    def forward(self, value):
        if self.shift.shape[0] == 2:  # a look at a parameter is no use of it
            value = self.first(value * self.gate)
        return nn.functional.linear(value + self.shift, self.last.weight, self.last.bias)


ROWS, WORDS = torch.randn(3, 2), torch.tensor([[1, 2]])
ATTENTION = "in_proj_weight attention.in_proj_bias attention.out_proj.*"
MODULES = {
    "in the order of use, not of definition": (
        OutOfOrder,
        torch.randn(3, 3),
        {"embed": "embed.*", "twice": "twice.* norm.* ~norm", "head": "head.*"},
    ),
    "a norm after a block joins the next layer": (
        Attention,
        torch.randn(2, 5, 4),
        {"attention": f"attention.{ATTENTION}", "head": "norm.* head.*"},
    ),
    "tied weights belong to the module used first": (
        TiedLanguageModel,
        WORDS,
        {"encoder": "decoder.weight", "middle": "middle.*", "decoder": "decoder.bias"},
    ),
    "bare parameters join the layer they are used after": (
        Functional,
        ROWS,
        {"first": "gate shift first.*", "last": "last.*"},
    ),
    "there is nothing but a bare parameter": (Bare, ROWS, {"weight": "weight"}),
    "a bare parameter at the end": (OwnParameter, ROWS, {"layer": "layer.* scale"}),
    "what a wrapper wraps": (
        lambda: Wrapped(Branches()),
        ROWS,
        {f"net.{name}": f"net.{name}.*" for name in ("stem", "left", "right.0", "right.1", "head")},
    ),
}


@pytest.mark.parametrize(("make", "example", "wanted"), MODULES.values(), ids=MODULES)
def test_the_default_layers_of_another_module(make, example, wanted):
    found = Layers.of(make(), example=example)
    assert {layer.name: {*layer.parameters, *layer.buffers} for layer in found} == {
        name: set(owned(text)) for name, text in wanted.items()
    }
    assert named(found) == list(wanted)


def test_a_parameter_without_a_layer_is_named():
    with pytest.raises(SalfError, match=r"'spare.weight' belongs to no layer.*or freeze it"):
        Layers.of(Unused(), example=ROWS)


# ---- by hand --------------------------------------------------------------------------------


def test_given_names_and_prefixes():
    layers = Layers.of(OutOfOrder(), ["embed", ["twice", "norm"], "head"])
    assert named(layers) == ["embed", "twice + norm", "head"]
    assert layers[1].parameters == ("twice.weight", "twice.bias", "norm.weight", "norm.bias")
    assert "norm.running_mean" in layers[1].buffers


def test_a_prefix_ends_at_a_dot():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    layers = Layers.of(model, ["1", ["0", *(str(k) for k in range(2, 11))]])
    assert layers[0].parameters == ("1.weight", "1.bias")  # not 10's


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["embed", "twice", "norm"], "'head.weight' belongs to no layer"),
        (["embed", "twice", "norm", "head", "head.bias"], "'head.bias' belongs to more than one"),
        (["embed", "twice", "norm", "tail"], r"'tail' names no parameter.*head.weight"),
    ],
)
def test_layers_by_hand_must_hold_every_parameter_once(given, says):
    with pytest.raises(SalfError, match=says):
        Layers.of(OutOfOrder(), given)


# ---- in which order -------------------------------------------------------------------------


IMAGES = torch.randn(2, 2, 3, 3)


def test_a_residual_net_has_a_layer_for_each_block_as_a_module_and_as_a_sequential():
    net = ResidualNetwork()
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.head)
    sequential = Layers.of(nn.Sequential(net.stem, net.one, net.two, *pooled))
    found = Layers.of(net, example=IMAGES)
    assert named(found) == ["stem", "one", "two", "head"]
    assert [layer.size for layer in found] == [layer.size for layer in sequential]
    assert found == Layers.of(net, named(found), IMAGES)


class Encoder(nn.Module):
    """Holds its blocks in a list, and a parameter and a norm of its own."""

    def __init__(self, blocks):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(5, 4))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8) for _ in range(blocks))
        self.norm = nn.LayerNorm(4)

    def forward(self, value):
        value = value + self.place
        for block in self.blocks:
            value = block(value)
        return self.norm(value)


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.embed = nn.Linear(3, 4)
        self.encoder = Encoder(3)
        self.head = nn.Linear(4, 2)

    def forward(self, value):
        token = self.token.expand(len(value), -1, -1)
        value = torch.cat([token, self.embed(value)], 1)
        return self.head(self.encoder(value)[:, 0])


class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, value):
        return self.net(value)


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped, nn.Sequential])
def test_a_transformer_has_a_layer_for_the_embedding_each_block_and_the_head(wrap):
    found = Layers.of(wrap(VisionTransformer()), example=torch.randn(2, 4, 3))
    sizes = [3 * 4 + 4 + 4 + 5 * 4, *(172,) * 3, 8 + 4 * 2 + 2]
    assert [layer.size for layer in found] == sizes
    places = ["embed", *(f"encoder.blocks.{k}" for k in range(3)), "head"]
    assert [layer.name.removeprefix("net.").removeprefix("0.") for layer in found] == places


def test_a_block_with_a_list_of_other_modules_stays_one_layer():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.MultiheadAttention(4, 2), Feed(), nn.Linear(4, 4)])

        def forward(self, value):
            value, _ = self.parts[0](value, value, value)
            return self.parts[2](self.parts[1](value))

    class Feed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

        def forward(self, value):
            return self.net(value)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Block(), nn.ModuleDict({"a": Block(), "b": Block()})

        def forward(self, value):
            return self.two["b"](self.two["a"](self.one(value)))

    assert named(Layers.of(Net(), example=torch.randn(2, 5, 4))) == ["one", "two.a", "two.b"]


class Branches(nn.Module):
    """Two branches side by side: neither needs the other."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
        self.left, self.right = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forward(self, value):
        value = self.stem(value)
        return self.head(self.left(value) * self.right(value))


def mlp():
    return seq((2, 2), nn.ReLU(), (2, 2), nn.ReLU(), (2, 2))


WRONG = {
    "sequential": (mlp, ROWS, "4,2,0", "0,2,4"),
    "sequential, rotated": (mlp, ROWS, "2,4,0", "0,2,4"),
    "sequential, halves": (mlp, ROWS, "2+4,0", "0,2+4"),
    "normalisation": (
        lambda: seq((2, 4), nn.BatchNorm1d(4), (4, 1)),
        ROWS,
        "1,0,2",
        "0,1,2",
    ),
    "module": (OutOfOrder, torch.randn(3, 3), "head,twice,norm,embed", "embed,twice,norm,head"),
    "functional": (OwnParameter, ROWS, "scale,layer", "layer,scale"),
    "attention": (Attention, torch.randn(2, 5, 4), "norm,attention,head", "attention,norm,head"),
    "residual": (ResidualNetwork, IMAGES, "stem,two,one,head", "stem,one,two,head"),
    "within a block": (
        Branches,
        ROWS,
        "stem,left,right.1,right.0,head",
        "stem,left,right.0,right.1,head",
    ),
    "below both branches": (Branches, ROWS, "left,right,stem,head", "stem,left,right,head"),
    "above both branches": (Branches, ROWS, "stem,head,left,right", "stem,left,right,head"),
    "tied": (
        TiedLanguageModel,
        WORDS,
        "middle,encoder,decoder.bias",
        "encoder,middle,decoder.bias",
    ),
}


@pytest.mark.parametrize(("make", "example", "given", "right"), WRONG.values(), ids=WRONG)
def test_a_wrong_order_is_refused_and_the_right_one_named(make, example, given, right):
    with pytest.raises(SalfError, match="wrong order: backpropagation completes") as refused:
        Layers.of(make(), parse_layers(given), example)
    order = [
        name.strip() for name in str(refused.value).split("order is: ")[1].rstrip(".").split(",")
    ]
    assert ",".join(order).replace(" + ", "+") == right
    Layers.of(make(), parse_layers(right), example)


RIGHT = {
    "branches joined": (Branches, ROWS, "stem,left+right,head"),
    "weight below bias": (Branches, ROWS, "stem,left.weight,left.bias,right,head"),
    "unused first": (Unused, ROWS, "spare,used"),
    "unused last": (Unused, ROWS, "used,spare"),
}


@pytest.mark.parametrize(("make", "example", "given"), RIGHT.values(), ids=RIGHT)
def test_the_order_in_which_backpropagation_completes_layers_is_accepted(make, example, given):
    layers = Layers.of(make(), parse_layers(given), example)
    assert ",".join(layer.name.replace(" + ", "+") for layer in layers) == given


def test_training_refuses_a_wrong_order():
    data = torch.randn(40, 2), torch.randint(0, 2, (40,))
    for given in ("4,2,0", ["4", "2", "0"]):
        with pytest.raises(SalfError, match="The order is: 0, 2, 4"):
            salf.train(mlp(), data, layers=given, users=2, batch_size=2, rounds=1)


# ---- what layers are for --------------------------------------------------------------------


def test_a_depth_reaches_the_layers_from_it_to_the_output():
    layers = Layers([Layer(name, (name,)) for name in "abc"])
    found = [[layer.name for layer in layers.reached(depth)] for depth in (1, 2, 3, 4)]
    assert found == [["a", "b", "c"], ["b", "c"], ["c"], []]
    for depth in (0, 5):
        with pytest.raises(SalfError, match=rf"depth {depth} is outside 1..4 \(3 layers\)"):
            layers.reached(depth)


def test_layers_print_as_a_table():
    assert str(Layers.of(OutOfOrder(), ["embed", ["twice", "norm"], "head"])).splitlines() == [
        "3 layers, from the input to the output:",
        "   1  embed                  16  embed.weight, embed.bias",
        "   2  twice + norm           28  twice.weight, twice.bias, norm.weight, norm.bias",
        "   3  head                   10  head.weight, head.bias",
    ]
