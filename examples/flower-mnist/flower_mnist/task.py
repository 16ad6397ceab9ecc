"""What the server and the nodes agree on: the data, how they are shared out, and the model."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salf.data import DataSet, Samples, load, split
from salf.models import build


def load_data(config: Mapping[str, Any]) -> DataSet:
    """By the name it has in the run config."""
    return load(config["data"])


def make_model(config: Mapping[str, Any], data: DataSet) -> nn.Module:
    """The same on every node, since its weights come from the seed."""
    return build(config["model"], data.train.shape, data.classes, config["seed"])


def own_samples(config: Mapping[str, Any], data: DataSet, number: int, nodes: int) -> Samples:
    """The share of node `number`; the same seed everywhere gives every node another one."""
    rng = np.random.default_rng(config["seed"])
    return data.train.subset(split(config["split"], data.train.labels, nodes, rng)[number])


def draw_batches(
    config: Mapping[str, Any], samples: Samples, number: int, round: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """A node's mini-batches of a round, one for each local step."""
    rng = np.random.default_rng([config["seed"], number, round])
    while True:
        yield samples.rows(torch.from_numpy(rng.choice(len(samples), config["batch-size"])))


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    """The share of samples that the model gets right."""
    model.eval()
    right = 0
    for rows in torch.arange(len(samples)).split(1000):
        inputs, labels = samples.rows(rows)
        right += int((model(inputs).argmax(1) == labels).sum())
    model.train()
    return right / len(samples)
