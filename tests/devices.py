"""Models on devices with a simulated clock: a layer costs what a test says."""

import torch
from torch import nn
from torch.nn import functional as F

from nets import small_mlp
from salf.core.deadline import Backpropagation
from salf.core.layers import Layers


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, value):
        return value + torch.relu(self.norm(self.convolution(value)))


class ResidualNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.one = Block(4)
        self.two = Block(4)
        self.head = nn.Linear(4, 3)

    def forward(self, value):
        return self.head(self.two(self.one(self.stem(value))).mean((2, 3)))


class TiedTransformer(nn.Module):
    """The output layer's weight is the embedding's: it is complete with layer 1, not with L."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)
        self.head.weight = self.embed.weight

    def forward(self, value):
        return self.head(self.encoder(self.embed(value)).mean(1))


LEAVES = ("convolution", "norm")
PARTS = ("self_attn", "norm1", "linear1", "linear2", "norm2")
PICTURES = torch.Generator().manual_seed(1)
MODELS = {
    "mlp": (small_mlp, torch.randn(4, 4, generator=PICTURES), None),
    "residual": (
        ResidualNetwork,
        torch.randn(4, 2, 4, 4, generator=PICTURES),
        None,
    ),
    "residual, a layer per leaf": (
        ResidualNetwork,
        torch.randn(4, 2, 4, 4, generator=PICTURES),
        ["stem", *(f"{block}.{leaf}" for block in ("one", "two") for leaf in LEAVES), "head"],
    ),
    "tied transformer": (
        TiedTransformer,
        torch.randint(0, 5, (4, 3), generator=PICTURES),
        None,
    ),
    "tied transformer, a layer per leaf": (
        TiedTransformer,
        torch.randint(0, 5, (4, 3), generator=PICTURES),
        ["embed", *(f"encoder.layers.{n}.{part}" for n in (0, 1) for part in PARTS), "head"],
    ),
}
TARGETS = torch.tensor([0, 1, 2, 0])


class Cost(torch.autograd.Function):
    """Identity through which the signal goes back only after the layer's time has passed."""

    @staticmethod
    def forward(ctx, value, number, device):
        ctx.number, ctx.device = number, device
        return value.view_as(value)

    @staticmethod
    def backward(ctx, signal):
        ctx.device.pass_back(ctx.number)
        return signal, None, None


class Device:
    """A user's device on which the forward pass and each layer take the seconds they are told."""

    def __init__(self, model, layers, forward=1.0, costs=None):
        self.model, self.layers, self.forward = model, layers, forward
        self.costs = dict.fromkeys(range(1, len(layers) + 1), 1.0) | (costs or {})
        self.speed, self.seconds = 1.0, 0.0
        self.passed = []  # the layers whose part of the backward pass was run, this round
        self.forwards = 0
        for number, layer in enumerate(layers, 1):
            for name in layer.name.split(" + "):
                model.get_submodule(name).register_forward_hook(self._charge(number))

    def now(self):
        return self.seconds

    def pass_back(self, number):
        self.passed.append(number)
        self.seconds += self.costs[number] / self.speed

    def wait(self, seconds):
        self.seconds += seconds

    def _charge(self, number):
        def hook(module, arguments, output):
            if isinstance(output, tuple):  # attention, which gives its weights too
                return (Cost.apply(output[0], number, self), *output[1:])
            return Cost.apply(output, number, self)

        return hook

    def loss(self, inputs, targets=TARGETS):
        def run():
            self.passed.clear()
            self.forwards += 1
            self.seconds += self.forward / self.speed
            return F.cross_entropy(self.model(inputs), targets)

        return run


def prepared(name="mlp", dtype=torch.float32, forward=1.0, costs=None):
    """A model on a device of made-up speed, and its backpropagation, which knows nothing yet."""
    make, inputs, given = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    layers = Layers.of(model, given, inputs)
    device = Device(model, layers, forward, costs)
    backpropagation = Backpropagation(model, layers, now=device.now)
    return model, backpropagation, device, device.loss(inputs)


def full_gradients(model, loss):
    """What `backward()` gives, with no deadline and nothing of ours."""
    model.zero_grad()
    loss().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def names_of(layers, depth):
    return {name for layer in layers[depth - 1 :] for name in layer.parameters}
