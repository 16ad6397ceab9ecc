"""From settings to a federation that trains, one row of metrics after each round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from salf import schedules, worlds
from salf.data import DataSet, Samples, from_tensors, given, holdout, load, split
from salf.depth import DepthDistribution
from salf.engines import Loss, RowLoss, cross_entropy
from salf.engines import engine as make_engine
from salf.engines.losses import checked as checked_loss
from salf.errors import SalfError
from salf.experiments.config import Config, check_names
from salf.layers import Layers, Prefixes
from salf.methods import Method
from salf.models import build
from salf.models.build import check_fit
from salf.rows import Row
from salf.schedules import Schedule
from salf.simulation import LocalWork, Simulation, accuracy
from salf.worlds import AtDeadline, World

# Called after each round with its row and the model; may raise StopTraining.
OnRound = Callable[[Row, nn.Module], None]


_EXAMPLES = {"method": "salf.method('drop')", "depth": "salf.depth.Uniform(users, layers)"}


class StopTraining(Exception):
    """What `on_round` raises to end a run in order after this round: what there is, is kept."""


@dataclass
class Training:
    """A simulation with what it is measured on."""

    simulation: Simulation
    validation: Samples | None  # what the curve is measured on
    test: Samples | None
    eval_every: int
    source: str = ""

    def rows(self, rounds: int) -> Iterator[Row]:
        """Train up to round `rounds`."""
        while self.simulation.t < rounds:
            start = perf_counter()
            row = self.measured(self.simulation.step(), rounds)
            yield replace(row, seconds=perf_counter() - start)

    def measured(self, row: Row, rounds: int) -> Row:
        """The row of a round that was just run, with the accuracy if an evaluation is due."""
        return replace(row, accuracy=self.accuracy_if_due(row.round, rounds))

    def accuracy_if_due(self, t: int, rounds: int) -> float | None:
        """The accuracy after round t of `rounds`, if an evaluation is due."""
        due = self.is_due(t) or t == rounds
        return self._accuracy(self.validation) if due else None

    def is_due(self, t: int) -> bool:
        """Whether round t is one of those after which the model is always evaluated."""
        return t % self.eval_every == 0

    def test_accuracy(self) -> float | None:
        """The accuracy of the model as it is now on the test data."""
        return self._accuracy(self.test)

    def _accuracy(self, samples: Samples | None) -> float | None:
        if samples is None or samples.labels.is_floating_point():
            return None
        return accuracy(self.simulation.engine, samples)


@dataclass(frozen=True)
class History:
    """What a training run leaves: a row per round, the accuracy at the end, and how it was run."""

    rows: tuple[Row, ...] = field(repr=False)
    test_accuracy: float | None
    engine: str = ""
    why: str = ""  # this engine
    stopped: bool = False  # by `on_round`, before all rounds were run
    loss: str = "one value per row"  # or "one value per user": what the loss returns

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy on held-out data over the rounds."""
        return max((row.accuracy for row in self.rows if row.accuracy is not None), default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever it was measured."""
        return [(row.round, row.accuracy) for row in self.rows if row.accuracy is not None]

    @property
    def seconds(self) -> float:
        """How long all rounds took."""
        return sum(row.seconds for row in self.rows)


def run_rounds(
    training: Training,
    rounds: int,
    before: Sequence[Row] = (),
    on_round: OnRound | None = None,
) -> History:
    """Train up to round `rounds`, or until `on_round` stops it; `before` are the rows so far."""
    rows, stopped, simulation = list(before), False, training.simulation
    for row in training.rows(rounds):
        rows.append(row)
        try:
            if on_round is not None:
                on_round(row, simulation.model)
        except StopTraining:
            stopped = True
            break
    engine = simulation.engine
    return History(
        tuple(rows),
        training.test_accuracy(),
        engine.name,
        engine.why,
        stopped,
        f"one value per {'row' if isinstance(engine.loss, RowLoss) else 'user'}",
    )


def train(
    model: nn.Module,
    data: DataSet | tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    method: str | Method = "salf",
    split: str | Sequence[Sequence[int]] = "iid",
    layers: str | Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution | World = "mixture",
    lr: float | str | Schedule | None = None,
    loss: Loss = cross_entropy,
    on_round: OnRound | None = None,
    **settings: Any,
) -> History:
    """Train your own model, in place, on your own tensors, with a method of your choice.

    `data` is a data set, or (inputs, labels) with `test` likewise. `split` is a rule (`iid`,
    `dirichlet:0.1`, `shards:2`) or each user's indices; then no validation part is held back, and
    the curve is measured on the test data. `layers` names the layers, from the input on, where the
    default view of the model is not the one you want. `depth` is a rule (`mixture`, `uniform`,
    ...), a distribution of `salf.depth` or a world of `salf.worlds`. `lr` is a learning rate, a
    schedule by name (`cosine:0.1`, ...) or a function of the round (1, 2, ...).
    `loss(outputs, targets)` returns one value per row, or a single value; then it is applied to
    each user's rows separately. `on_round(row, model)` is called after each round and may raise
    `salf.StopTraining`. Floating-point data are converted to the type of the model's parameters.
    `settings` are those of `salf.Config`: users, stragglers, rounds, momentum, batch_size,
    local_steps, client_lr, server, seed, eval_every, engine, ...
    """
    if not isinstance(data, DataSet):
        data = from_tensors(data, data if test is None else test)
        tested: Samples | None = None if test is None else data.test
    elif test is not None:
        raise SalfError("a data set has test data of its own: leave out test=.")
    else:
        tested = data.test
    given_split = None if isinstance(split, str) else split
    for name, value, kinds in (
        ("method", method, (str, Method)),
        ("depth", depth, (str, DepthDistribution, World)),
    ):
        if not isinstance(value, kinds):
            what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise SalfError(
                f"{name}= takes a name or an object such as {_EXAMPLES[name]}, not {what}."
            )
    named: dict[str, Any] = {
        "data": data.name,
        **({"method": method} if isinstance(method, str) else {}),
        **({"split": split} if isinstance(split, str) else {"users": len(split)}),
        **({"depth": depth} if isinstance(depth, str) else {}),
        **({"layers": layers} if isinstance(layers, str) else {}),
        **({} if lr is None or callable(lr) else {"lr": lr}),
        **settings,
    }
    check_names(named, Config)
    config = Config(**named)
    if given_split is not None:
        _check_given_split(given_split, config, settings, tested)
    if isinstance(method, Method) and config.average not in ("reached", method.average):
        raise SalfError(f"the method given has average={method.average!r}; set it there.")
    if config.threads:
        torch.set_num_threads(config.threads)
    training = assemble(
        config,
        model,
        data,
        method=method if isinstance(method, Method) else None,
        indices=given_split,
        layers=None if isinstance(layers, str) else layers,
        world=None if isinstance(depth, str) else depth,
        loss=loss,
        schedule=lr if callable(lr) else None,
        tested=tested is not None,
        model_name=type(model).__name__,
    )
    return run_rounds(training, config.rounds, on_round=on_round)


def _check_given_split(
    split: Sequence[Sequence[int]], config: Config, settings: dict[str, Any], test: Samples | None
) -> None:
    if config.users != len(split):
        raise SalfError(f"the split is for {len(split)} users, and users is {config.users}.")
    if settings.get("validation"):
        raise SalfError(
            "validation cannot be held back from a split given by indices: leave samples out of "
            "the split and pass them as test=."
        )
    if settings.get("eval_every") and test is None:
        raise SalfError("with a split given by indices, eval_every needs test= to evaluate on.")


def from_config(
    config: Config,
    report: Callable[[str], None] | None = None,
    method: Method | None = None,
    world: World | None = None,
) -> Training:
    """The federation a config describes, or the same with another method or world.

    `report` gets a line when data are being fetched.
    """
    data = load(config.data, Path(config.data_dir) if config.data_dir else None, report=report)
    model = build(config.model, data.train.shape, data.classes, config.seed)
    return assemble(config, model, data, method=method, world=world, model_name=config.model)


def assemble(
    config: Config,
    model: nn.Module,
    data: DataSet,
    *,
    method: Method | None = None,
    indices: Sequence[Sequence[int]] | None = None,
    layers: Sequence[Prefixes] | None = None,
    world: DepthDistribution | World | None = None,
    loss: Loss = cross_entropy,
    schedule: Schedule | None = None,
    tested: bool = True,
    model_name: str = "",
) -> Training:
    """Put a federation together; what is not given is made from the config."""
    device = _device(config.device)
    model.to(device)
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    example, targets = _example(data.train, config.batch_size).to(device, dtype).rows()
    classes = data.classes if loss is cross_entropy else 0
    outputs = check_fit(model, example, classes, model_name, config.batch_size)
    loss = checked_loss(loss, outputs, targets)

    rng = np.random.default_rng([config.seed, 0])  # rounds are numbered from 1
    # Indices are the caller's own and may name any sample, so then nothing is held back.
    kept, held = holdout(len(data.train), config.validation if indices is None else 0.0, rng)
    train = data.train.subset(kept).to(device, dtype)
    if indices is None:
        shares = split(config.split, train.labels, config.users, rng, config.batch_size)
    else:
        shares = given(indices, len(train), config.batch_size)
    seen_as = Layers.of(model, layers or config.given_layers(), example)
    if world is None:
        world = worlds.parse(config.depth, len(shares), len(seen_as), config.stragglers)
    local = LocalWork(config.local_steps, config.local_epochs, config.client_lr)
    longest = local.planned(np.array([max(map(len, shares))]), config.batch_size).item()
    simulation = Simulation(
        make_engine(config.engine, model, seen_as, loss, example, longest),
        method or config.make_method(),
        world if isinstance(world, World) else AtDeadline(world),
        train,
        shares,
        schedule or schedules.schedule(config.lr, config.rounds),
        config.make_optimiser(),
        config.batch_size,
        config.seed,
        local=local,
    )
    test = data.test.to(device, dtype) if tested else None
    watched = data.train.subset(held).to(device, dtype) if len(held) else test
    # A round's backward pass costs about two forward passes more than an evaluation of as many
    # rows, so evaluating once every so many rounds is at most a third of the work.
    measured = 0 if watched is None else len(watched)
    rows = int(simulation.planned.sum()) * config.batch_size
    every = config.eval_every or max(1, ceil(measured / rows))
    return Training(simulation, watched, test, every, data.source)


def _example(samples: Samples, batch_size: int) -> Samples:
    """Some rows from all over the data, which may be sorted, and the one with the largest label."""
    count = min(max(batch_size, 8), len(samples))
    spread = torch.linspace(0, len(samples) - 1, count - 1).long()
    largest = int(samples.labels.argmax()) * len(samples) // samples.labels.numel()
    return samples.subset(torch.cat([spread, torch.tensor([largest])]))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise SalfError(f"the device {name!r} cannot be used: {first}. Use --device cpu.") from None
    return device
