"""From settings to a federation that trains, one row of metrics after each round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from salf import server
from salf.data import DataSet, Samples, from_tensors, given, holdout, load, split
from salf.depth import DepthDistribution
from salf.depth import parse as depths
from salf.engines import RowLoss, cross_entropy
from salf.engines import engine as make_engine
from salf.errors import SalfError
from salf.experiments.config import Config, make_config
from salf.experiments.simulation import Simulation, accuracy
from salf.layers import Layers, Prefixes
from salf.methods import Method
from salf.models import build
from salf.models.build import check_fit


@dataclass(frozen=True)
class Row:
    """One line of metrics.csv. `accuracy` is that on held-out data, where it was measured."""

    round: int
    train_loss: float
    accuracy: float | None
    reached: tuple[int, ...]  # users whose update layer l got, l = 1..L
    seconds: float  # since the start, of this process and those it resumed


@dataclass
class Training:
    """A simulation with what it is measured on."""

    simulation: Simulation
    validation: Samples | None
    test: Samples | None
    eval_every: int
    source: str = ""

    def rows(self, rounds: int, seconds: float = 0.0) -> Iterator[Row]:
        """Train up to round `rounds`; `seconds` have gone by before."""
        start = perf_counter() - seconds
        while self.simulation.t < rounds:
            record = self.simulation.step()
            due = record.round % self.eval_every == 0 or record.round == rounds
            yield Row(
                record.round,
                record.train_loss,
                self.validation_accuracy() if due else None,
                record.reached,
                perf_counter() - start,
            )

    def validation_accuracy(self) -> float | None:
        """The accuracy of the model as it is now on the data held back."""
        return self._accuracy(self.validation)

    def test_accuracy(self) -> float | None:
        """The accuracy of the model as it is now on the test data."""
        return self._accuracy(self.test)

    def _accuracy(self, samples: Samples | None) -> float | None:
        if samples is None or samples.labels.is_floating_point():
            return None
        return accuracy(self.simulation.engine, samples)


@dataclass(frozen=True)
class History:
    """What a training run leaves: a row per round, and the accuracy at the end."""

    rows: tuple[Row, ...] = field(repr=False)
    test_accuracy: float | None

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy on held-out data over the rounds."""
        return max((row.accuracy for row in self.rows if row.accuracy is not None), default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever it was measured."""
        return [(row.round, row.accuracy) for row in self.rows if row.accuracy is not None]


def train(
    model: nn.Module,
    data: DataSet | tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    method: str | Method = "salf",
    split: str | Sequence[Sequence[int]] = "iid",
    layers: Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution = "mixture",
    loss: RowLoss = cross_entropy,
    on_round: Callable[[Row], None] | None = None,
    **settings: Any,
) -> History:
    """Train your own model, in place, on your own tensors, with a method of your choice.

    `data` is a data set, or (inputs, labels) with `test` likewise. `split` is a rule (`iid`,
    `dirichlet:0.1`, `shards:2`) or each user's indices. `layers` names the layers, from the input
    on, where the default view of the model is not the one you want. `depth` is a rule (`mixture`,
    `uniform`, ...) or a distribution of `salf.depth`. `loss` gives one value per row. `on_round` is
    called with each round's row. `settings` are those of `salf.Config`: users, stragglers, rounds,
    lr, momentum, batch_size, seed, eval_every, engine, ...
    """
    if not isinstance(data, DataSet):
        data = from_tensors(data, data if test is None else test)
        tested: Samples | None = None if test is None else data.test
    else:
        tested = data.test
    config = make_config(
        {
            "data": data.name,
            "model": f"{type(model).__module__}:{type(model).__qualname__}",
            **({"method": method} if isinstance(method, str) else {}),
            **({"split": split} if isinstance(split, str) else {"users": len(split)}),
            **({"depth": depth} if isinstance(depth, str) else {}),
            **settings,
        }
    )
    if not isinstance(split, str) and config.users != len(split):
        raise SalfError(f"the split is for {len(split)} users, and users is {config.users}.")
    if isinstance(method, Method) and config.average not in ("reached", method.average):
        raise SalfError(f"the method given has average={method.average!r}; set it there.")
    if config.threads:
        torch.set_num_threads(config.threads)
    training = assemble(
        config,
        model,
        data,
        method=method if isinstance(method, Method) else None,
        indices=None if isinstance(split, str) else split,
        layers=layers,
        depth=None if isinstance(depth, str) else depth,
        loss=loss,
    )
    training.test = tested
    rows = []
    for row in training.rows(config.rounds):
        rows.append(row)
        if on_round is not None:
            on_round(row)
    return History(tuple(rows), training.test_accuracy())


def from_config(
    config: Config,
    report: Callable[[str], None] | None = None,
    method: Method | None = None,
) -> Training:
    """The federation a config describes, or the same with another method.

    `report` gets a line when data are being fetched.
    """
    data = load(config.data, Path(config.data_dir) if config.data_dir else None, report=report)
    model = build(config.model, data.train.shape, data.classes, config.seed)
    return assemble(config, model, data, method=method)


def assemble(
    config: Config,
    model: nn.Module,
    data: DataSet,
    *,
    method: Method | None = None,
    indices: Sequence[Sequence[int]] | None = None,
    layers: Sequence[Prefixes] | None = None,
    depth: DepthDistribution | None = None,
    loss: RowLoss = cross_entropy,
) -> Training:
    """Put a federation together; what is not given is made from the config."""
    device = _device(config.device)
    model.to(device)
    some = torch.arange(min(config.batch_size, len(data.train)))
    example = data.train.subset(some).to(device).rows()[0]
    check_fit(model, example, data.classes if loss is cross_entropy else 0, config.model)

    rng = np.random.default_rng([config.seed, 0])  # rounds are numbered from 1
    # Indices are the caller's own and may name any sample, so then nothing is held back.
    kept, held = holdout(len(data.train), config.validation if indices is None else 0.0, rng)
    train = data.train.subset(kept).to(device)
    if indices is None:
        shares = split(config.split, train.labels, config.users, rng, config.batch_size)
    else:
        shares = given(indices, len(train), config.batch_size)
    seen_as = Layers.of(model, layers, example)
    simulation = Simulation(
        make_engine(config.engine, model, seen_as, loss),
        method or config.make_method(),
        depth or depths(config.depth, len(shares), len(seen_as), config.stragglers),
        train,
        shares,
        server.schedule(config.lr, config.rounds),
        config.momentum,
        config.batch_size,
        config.seed,
    )
    validation = data.train.subset(held).to(device) if len(held) else None
    # A round's backward pass costs about two forward passes more than an evaluation of as many
    # rows, so evaluating once every so many rounds is at most a third of the work.
    every = config.eval_every or max(1, ceil(len(held) / (len(shares) * config.batch_size)))
    return Training(simulation, validation, data.test.to(device), every, data.source)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise SalfError(f"the device {name!r} cannot be used: {first}. Use --device cpu.") from None
    return device
