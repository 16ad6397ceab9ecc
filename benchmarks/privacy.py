"""What gradients reveal: labels, from the last layer's bias, and the input, of a batch of one.

    python benchmarks/privacy.py [--out docs/figures]

The attack of docs/privacy.md: the gradient of the last layer's bias is the mean over a batch of
softmax minus label. The attacker knows the model. It has as many samples of its own, makes batches
of them, and learns by least squares how many rows of each class such a gradient means. With noise,
a device would clip every layer to 1 / sqrt(L) and add noise of this deviation to every number
before it sends it, which the attacker knows; salf does not do that for it.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.common.files import write_whole
from salf.common.pictures import svg
from salf.runs.config import Config
from salf.runs.federation import from_config

BATCH, USERS = 16, 30
BLIND = 1e6  # noise in which nothing can be seen
NOISES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
BASE = Config(data="mnist", model="cnn", users=USERS, rounds=100, lr=0.1, stragglers=0.9, threads=1)


def rounded(counts):
    """Whole numbers of rows that sum to the batch, as near to these as can be."""
    wanted = np.clip(counts, 0, None)
    wanted = wanted / max(wanted.sum(), 1e-12) * BATCH
    found = np.floor(wanted).astype(int)
    found[np.argsort(found - wanted)[: BATCH - found.sum()]] += 1
    return found


def gradients(model, layers, samples, count, seed, skew=0.0):
    """Of batches, whose labels are mixed alike or by Dirichlet(skew), the last bias gradient.

    As it is and as it is clipped; and how many rows each class has.
    """
    plain, bounded, counts, rng = [], [], [], np.random.default_rng(seed)
    own = dict(model.named_parameters())
    last = layers[len(layers) - 1].parameters
    bias = next(name for name in last if own[name].dim() == 1)
    classes, chances = samples.labels.numpy(), None
    for _ in range(count):
        if skew:
            chances = rng.dirichlet(np.full(10, skew))[classes] + 1e-12
            chances /= chances.sum()
        rows = rng.choice(len(samples), BATCH, p=chances)
        inputs, labels = samples.rows(torch.from_numpy(rows))
        loss = F.cross_entropy(model(inputs), labels)
        update = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
        plain.append(update[bias].numpy())
        norm = float(sum(update[name].norm() ** 2 for name in last)) ** 0.5
        most = len(layers) ** -0.5
        bounded.append(update[bias].numpy() * min(1.0, most / norm))
        counts.append(np.bincount(labels.numpy(), minlength=10))
    return np.array(plain), np.array(bounded), np.array(counts)


def read(of_users, own, noise):
    """The share of the labels of users' batches that are read off protected gradients."""

    def seen(of, seed):
        plain, bounded, counts = of
        drawn = np.random.default_rng(seed).standard_normal(plain.shape)
        sent = bounded + noise * drawn if noise else plain
        return np.hstack([sent, np.ones((len(sent), 1))]), counts

    (theirs, true), (ours, known) = seen(of_users, 1), seen(own, 2)
    law = np.linalg.lstsq(ours, known, rcond=None)[0]
    found = np.array([rounded(each) for each in theirs @ law])
    return float(np.minimum(found, true).sum(axis=1).mean()) / BATCH


def reconstructed(noise):
    """The error, relative to the input, of what one row's gradient of a linear layer reveals."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    errors = []
    for number in range(20):
        row = torch.rand(1, 784)
        loss = F.cross_entropy(model(row), torch.tensor([number % 10]))
        weight, bias = torch.autograd.grad(loss, [model[0].weight, model[0].bias])
        if noise:
            factor = min(1.0, 2**-0.5 / float(weight.norm() ** 2 + bias.norm() ** 2) ** 0.5)
            weight, bias = (g * factor + noise * torch.randn(g.shape) for g in (weight, bias))
        unit = int(bias.abs().argmax())
        errors.append(float((weight[unit] / bias[unit] - row[0]).norm() / row.norm()))
    return float(np.median(errors))


def labels(out, rounds):
    """The attack's success before training and after some rounds, by the noise on devices."""
    training = from_config(BASE.changed(rounds=rounds))
    simulation = training.simulation
    layers = simulation.engine.layers
    found = {noise: [] for noise in (*NOISES, BLIND)}
    for t in (0, rounds):
        if t:
            training.run(rounds)
        model, test = simulation.model.train(), simulation.problem.test
        for skew in (0.0, 0.1):
            of_users = gradients(model, layers, simulation.data.samples, 500, 0, skew)
            own = gradients(model, layers, test, 2000, 1, skew)
            for noise, shares in found.items():
                shares.append(read(of_users, own, noise))
    columns = [f"round {t}, {kind}" for t in (0, rounds) for kind in ("i.i.d.", "skewed")]
    table = Table("noise", *columns, "one row: error")
    for noise, shares in found.items():
        error = "-" if noise == BLIND else f"{reconstructed(noise):.1e}"
        name = "guessed" if noise == BLIND else f"{noise:g}"
        table.add_row(name, *(f"{share:.2f}" for share in shares), error)
    Console().print(table)
    points = [
        Point(name, noise, round(share, 4))
        for noise in NOISES
        for name, share in zip(columns, found[noise], strict=True)
    ]
    colours = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9")
    lines = [Line(name, colour, bold=True) for name, colour in zip(columns, colours, strict=True)]
    for kind, blind in (("i.i.d.", found[BLIND][2]), ("skewed", found[BLIND][3])):
        lines.append(Line(f"guessed, {kind}", "#888888", dashed=True))
        points += [Point(lines[-1].name, noise, round(blind, 4)) for noise in (0.0, NOISES[-1])]
    x = Axis("Noise on the device, in units of the clip (0: no protection)")
    y = Axis("Labels of a batch of 16 that are read", domain=(0.0, 1.0), percent=True)
    figure = Figure([Lines(points, lines, x, y)], "Labels read off the last layer's bias gradient")
    if out is not None:
        write_whole(out / "labels.svg", svg(figure))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for labels.svg")
    labels(parser.parse_args().out, 100)


if __name__ == "__main__":
    main()
