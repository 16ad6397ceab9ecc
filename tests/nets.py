"""Small networks for all tests: linear ones, and those of the kinds that people bring."""

from itertools import pairwise

import torch
from torch import nn

DOUBLE = torch.float64


def mlp(*sizes, seed=0, between=nn.ReLU, dtype=torch.float32):
    """Linear layers of these sizes, with an activation between them."""
    torch.manual_seed(seed)
    modules = []
    for inputs, outputs in pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), between()]
    return nn.Sequential(*modules[:-1]).to(dtype)


def small_mlp(seed=0, sizes=(4, 6, 5, 3), dtype=DOUBLE):
    return mlp(*sizes, seed=seed, between=nn.Tanh, dtype=dtype)


def small_normed(seed=0, dtype=DOUBLE):
    """Convolutions with batch norm: a VGG of two layers and a head."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, 3),
    ).to(dtype)


class Residual(nn.Module):
    """Two convolutions with a norm each, and a way around them."""

    def __init__(self, channels, norm):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm(channels), nn.ReLU()
        )
        self.last = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = norm(channels)

    def forward(self, value):
        return torch.relu(value + self.norm(self.last(self.body(value))))


class ResidualNet(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = norm(4)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.ModuleList([Residual(4, norm), Residual(4, norm)])
        self.head = nn.Linear(4, 3)

    def forward(self, value):
        value = self.pool(torch.relu(self.norm(self.stem(value))))
        for block in self.blocks:
            value = block(value)
        return self.head(value.mean((2, 3)))


class Mean(nn.Module):
    """Over all but rows and channels."""

    def forward(self, value):
        return value.flatten(2).mean(2)


def residual_blocks(norm):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        norm(4),
        nn.MaxPool2d(2),
        Residual(4, norm),
        Residual(4, norm),
        Mean(),
        nn.Linear(4, 3),
    )


class LowRank(nn.Module):
    """A frozen convolution and a small one beside it (LoRA)."""

    def __init__(self, frozen):
        super().__init__()
        channels = frozen.in_channels
        self.frozen = frozen
        self.down = nn.Conv2d(channels, 1, 3, padding=1, bias=False)
        self.up = nn.Conv2d(1, channels, 1, bias=False)

    def forward(self, value):
        return self.frozen(value) + self.up(self.down(value))


def adapted(model):
    """A residual net of which adapters in the blocks and the head train."""
    model.requires_grad_(False)
    for block in [each for each in model.modules() if isinstance(each, Residual)]:
        block.last = LowRank(block.last)
    [*model.children()][-1].requires_grad_(True)
    return model


class Transformer(nn.Module):
    def __init__(self, batch_first=True, dropout=0.0):
        super().__init__()
        self.register_buffer("places", torch.linspace(-1, 1, 5).view(5, 1))
        self.embed = nn.Linear(3, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, value):
        return self.head(self.encoder(self.embed(value) + self.places).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(3, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, value):
        values, _ = self.cells(value)
        return self.head(values[:, -1])


class Tokens(nn.Module):
    """Of 7 words: 5 a row."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.cells = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, value):
        return self.head(self.cells(self.words(value.long()))[0].mean(1))


class Twice(nn.Module):
    """A module that is used first and last."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)

    def forward(self, value):
        return self.twice(torch.tanh(self.middle(torch.tanh(self.twice(value)))))


def groups(channels):
    return nn.GroupNorm(2, channels)


IMAGE, SEQUENCE = (2, 6, 6), (5, 3)
# How it is made, the shape of a row, and the engine that `auto` takes.
NETS = {
    "residual net, batch norm": (lambda: ResidualNet(nn.BatchNorm2d), IMAGE, "grouped"),
    "residual net, group norm": (lambda: ResidualNet(groups), IMAGE, "grouped"),
    "residual blocks, batch norm": (lambda: residual_blocks(nn.BatchNorm2d), IMAGE, "fused"),
    "residual blocks, group norm": (lambda: residual_blocks(groups), IMAGE, "fused"),
    "adapted net": (lambda: adapted(ResidualNet(nn.BatchNorm2d)), IMAGE, "grouped"),
    "adapted blocks": (lambda: adapted(residual_blocks(nn.BatchNorm2d)), IMAGE, "fused"),
    "transformer": (Transformer, SEQUENCE, "grouped"),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCE, "grouped"),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE, "grouped"),
}


def make(name, seed=0, dtype=DOUBLE):
    torch.manual_seed(seed)
    return NETS[name][0]().to(dtype)
