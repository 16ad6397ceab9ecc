"""From settings to a federation that trains, one row of metrics after each round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from salf import memory, schedules, worlds
from salf.arrivals import Ints
from salf.attacks import Attack, Attackers
from salf.compression import Compression
from salf.data import (
    DataSet,
    Own,
    Samples,
    Shares,
    Split,
    from_tensors,
    given,
    holdout,
    joined,
    load,
    some,
    split,
)
from salf.depth import DepthDistribution
from salf.engines import Loss, RowLoss, cross_entropy
from salf.engines import engine as make_engine
from salf.engines.losses import checked as checked_loss
from salf.errors import SalfError
from salf.evaluation import Metric, evaluate
from salf.evaluation import check_names as check_metrics
from salf.experiments.config import Config, check_names
from salf.fleet import deadlines
from salf.fleet import named as fleets
from salf.fleet.devices import Fleet
from salf.fleet.learned import LearnedReach
from salf.fleet.participation import ByLabels
from salf.fleet.timing import Cost, Timing, equal_time
from salf.fleet.world import OnFleet
from salf.inputs import takes_several
from salf.layers import Layers, Prefixes
from salf.methods import Method
from salf.models import build
from salf.models.build import check_fit
from salf.narrow import narrowed
from salf.robust import Robust
from salf.rows import Row, with_metrics
from salf.sampling import Batches, Cohort, LocalWork
from salf.schedules import Schedule
from salf.simulation import ROUNDING, Simulation
from salf.worlds import AtDeadline, World

SLOWEST = "slowest_tenth_accuracy"  # what the accuracy on their data is called
SLOWEST_ROWS = 5_000  # of their data are enough to measure it on

# Called after each round with its row and the model; may raise StopTraining.
OnRound = Callable[[Row, nn.Module], None]


_EXAMPLES = {
    "method": "salf.method('drop')",
    "depth": "salf.depth.Uniform(users, layers)",
    "fleet": "salf.Fleet('phones', users=30)",
}


class StopTraining(Exception):
    """Raise this in `on_round` to end a run after this round and keep its results."""


@dataclass
class Training:
    """A simulation with what it is measured on."""

    simulation: Simulation
    validation: Samples | None  # what the curve is measured on
    test: Samples | None
    eval_every: int
    source: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # your own
    eval_seconds: float = 0.0  # of the simulated clock, between evaluations, instead of rounds
    slowest: Samples | None = None  # the data of the tenth of the users with the slowest devices

    def rows(self, rounds: int, seconds: float | None = None) -> Iterator[Row]:
        """Train up to round `rounds` (0 for no limit), or as long as the simulated time allows."""
        if seconds is not None and self.simulation.clock is None:
            raise SalfError("seconds needs a clock, which this world does not have: use rounds.")
        while not rounds or self.simulation.t < rounds:
            start, before = perf_counter(), self.simulation.clock
            row = self.simulation.step_until(seconds)
            if row is None:
                return
            row = self.measured(row, rounds, before)
            yield replace(row, seconds=perf_counter() - start)

    def measured(self, row: Row, rounds: int, before: float | None = None) -> Row:
        """The row of a round that was just run, with what is measured if an evaluation is due.

        `before` is the simulated time at which the round began.
        """
        due = self.is_due_after(row, before) or row.round == rounds
        return with_metrics(row, self._evaluated(self.validation) if due else {})

    def _points(self, clock: float) -> int:
        """How many times an evaluation has become due, however the sum of times was rounded."""
        return int(clock * (1 + ROUNDING) // self.eval_seconds)

    def evaluated_if_due(self, t: int, rounds: int) -> dict[str, float]:
        """What is measured after round t of `rounds`; nothing if no evaluation is due."""
        due = self.is_due(t) or t == rounds
        return self._evaluated(self.validation) if due else {}

    def is_due_after(self, row: Row, before: float | None) -> bool:
        """Whether the model is always evaluated after this round, which began at time `before`."""
        if self.eval_seconds and before is not None and row.clock is not None:
            return self._points(row.clock) > self._points(before)
        return self.is_due(row.round)

    def is_due(self, t: int) -> bool:
        """Whether round t is one of those after which the model is always evaluated."""
        return t % self.eval_every == 0

    def tested(self) -> dict[str, float]:
        """What is measured of the model as it is now on the test data.

        With a fleet, also the accuracy on the data of the slowest tenth of the users.
        """
        found = self._evaluated(self.test)
        slowest = self._evaluated(self.slowest)
        if found and "accuracy" in slowest:
            found[SLOWEST] = slowest["accuracy"]
        return found

    def _evaluated(self, samples: Samples | None) -> dict[str, float]:
        if samples is None:
            return {}
        return evaluate(self.simulation.engine, samples, self.metrics)


@dataclass(frozen=True)
class History:
    """The result of a training run: a row per round, final metrics, and how it was run."""

    rows: tuple[Row, ...] = field(repr=False)
    test: Mapping[str, float]  # by the name of the metric, on the test data
    engine: str = ""
    why: str = ""  # this engine
    stopped: bool = False  # by `on_round`, before all rounds were run
    loss: str = "one value per row"  # or "one value per user": what the loss returns

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy at the end on the test data, if labels are classes."""
        return self.test.get("accuracy")

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy on held-out data over the rounds."""
        return max((row.accuracy for row in self.rows if row.accuracy is not None), default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever it was measured."""
        return [(row.round, row.accuracy) for row in self.rows if row.accuracy is not None]

    @property
    def timed_curve(self) -> list[tuple[float, float]]:
        """(simulated seconds, accuracy) wherever it was measured; empty without a fleet."""
        return [
            (row.clock, row.accuracy)
            for row in self.rows
            if row.accuracy is not None and row.clock is not None
        ]

    def curve_of(self, metric: str) -> list[tuple[int, float]]:
        """(round, value) of `loss` on held-out data, or of a metric of your own."""
        return [(row.round, row.metrics[metric]) for row in self.rows if metric in row.metrics]

    @property
    def seconds(self) -> float:
        """How long all rounds took."""
        return sum(row.seconds for row in self.rows)


def run_rounds(
    training: Training,
    rounds: int,
    before: Sequence[Row] = (),
    on_round: OnRound | None = None,
    seconds: float | None = None,
) -> History:
    """Train up to round `rounds`, or until `on_round` stops it; `before` are the rows so far.

    With `seconds`, as long as the simulated time allows, and then `rounds` may be 0 for any number.
    """
    rows, stopped, simulation = list(before), False, training.simulation
    with memory.kept():
        for row in training.rows(rounds, seconds):
            rows.append(row)
            try:
                if on_round is not None:
                    on_round(row, simulation.model)
            except StopTraining:
                stopped = True
                break
        tested = training.tested()
    engine = simulation.engine
    return History(
        tuple(rows),
        tested,
        engine.name,
        engine.why,
        stopped,
        f"one value per {'row' if isinstance(engine.loss, RowLoss) else 'user'}",
    )


def own_federation(
    model: nn.Module,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any],
    test: tuple[Any, Any] | None = None,
    *,
    method: str | Method = "salf",
    split: str | Sequence[Sequence[int]] = "iid",
    layers: str | Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution | World = "mixture",
    fleet: str | Fleet = "",
    lr: float | str | Schedule | None = None,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> tuple[Config, Callable[[Config], Training]]:
    """The config of a federation of Python objects, and what makes it; see `salf.train`."""
    shares = None
    if not isinstance(data, DataSet):
        if (shares := _of_users(data, settings.get("users"))) is not None:
            if not isinstance(split, str) or split != "iid":
                raise SalfError("split= does not apply to users' own data: leave it out.")
            settings["users"] = len(shares)
            seen = shares.samples if isinstance(shares, Split) else some(shares, 64)
            data = (seen.inputs, seen.labels)
        pair: Any = data
        data = from_tensors(pair, pair if test is None else test)
        tested: Samples | None = None if test is None else data.test
    elif test is not None:
        raise SalfError("a data set has its own test data: leave out test=.")
    else:
        tested = data.test
    given_split = None if isinstance(split, str) else split
    for name, value, kinds in (
        ("method", method, (str, Method)),
        ("depth", depth, (str, DepthDistribution, World)),
        ("fleet", fleet, (str, Fleet)),
    ):
        if not isinstance(value, kinds):
            what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise SalfError(
                f"{name}= takes a name or an object such as {_EXAMPLES[name]}, not {what}."
            )
    if fleet and (not isinstance(depth, str) or depth != "mixture" or "stragglers" in settings):
        raise SalfError(
            "the fleet and the deadline determine how far users get: leave out depth= and "
            "stragglers=."
        )
    named: dict[str, Any] = {
        "data": data.name,
        **({"method": method} if isinstance(method, str) else {}),
        **({"split": split} if isinstance(split, str) else {"users": len(split)}),
        **({"depth": depth} if isinstance(depth, str) else {}),
        **({"layers": layers} if isinstance(layers, str) else {}),
        **_of_fleet(fleet, settings),
        **({} if lr is None or callable(lr) else {"lr": lr}),
        **settings,
    }
    check_names(named, Config)
    config = Config(**named)
    if given_split is not None and config.users != len(given_split):
        raise SalfError(f"the split is for {len(given_split)} users, but users is {config.users}.")
    if given_split is not None or shares is not None:
        _check_evaluation(settings, tested)
    if isinstance(method, Method) and config.average not in ("reached", method.average):
        raise SalfError(f"the method given has average={method.average!r}; set it there.")
    if isinstance(method, Method):
        config.check_reach(method)
    return config, lambda config: assemble(
        config,
        model,
        data,
        method=method if isinstance(method, Method) else None,
        indices=given_split,
        shares=shares,
        layers=None if isinstance(layers, str) else layers,
        world=None if isinstance(depth, str) else depth,
        fleet=None if isinstance(fleet, str) else fleet,
        loss=loss,
        metrics=metrics,
        schedule=lr if callable(lr) else None,
        tested=tested is not None,
        model_name=type(model).__name__,
    )


def _of_fleet(fleet: str | Fleet, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a fleet brings along."""
    if not fleet:
        return {}
    if isinstance(fleet, str):
        return {"fleet": fleet}
    if "availability" in settings:
        raise SalfError("the fleet given has its own availability: leave out availability=.")
    return {"fleet": fleets.GIVEN, "users": len(fleet)}


def _of_users(data: Any, users: int | None) -> Shares | None:
    """What each user has; None if the data are yet to be shared out."""
    if isinstance(data, list) and data:
        pairs = all(isinstance(each, tuple) and len(each) == 2 for each in data)
        if pairs or all(isinstance(each, Dataset) for each in data):
            if users not in (None, len(data)):
                raise SalfError(f"the data are for {len(data)} users, but users is {users}.")
            return joined(data) if pairs else Own(data.__getitem__, len(data))
    if callable(data) and not isinstance(data, Dataset):
        if users is None:
            raise SalfError(
                "data is a function of the user's number: pass the number of users as users=."
            )
        return Own(data, users)
    return None


def _check_evaluation(settings: dict[str, Any], test: Samples | None) -> None:
    if settings.get("validation"):
        raise SalfError(
            "validation data cannot be held out from a split by indices or from users' own data: "
            "leave samples out and pass them as test=."
        )
    if settings.get("eval_every") and test is None:
        raise SalfError(
            "with a split given by indices, or with users' own data, eval_every needs test= to "
            "evaluate on."
        )


def from_config(
    config: Config,
    report: Callable[[str], None] | None = None,
    method: Method | None = None,
    world: World | None = None,
) -> Training:
    """The federation a config describes, or the same with another method or world.

    `report` gets a line when data are being fetched.
    """
    if config.given:
        raise SalfError(
            f"the config is from a Python run with its own {', '.join(config.given)}: repeat it "
            "with salf.train."
        )
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
    shares: Shares | None = None,
    layers: Sequence[Prefixes] | None = None,
    world: DepthDistribution | World | None = None,
    fleet: Fleet | None = None,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    schedule: Schedule | None = None,
    tested: bool = True,
    model_name: str = "",
) -> Training:
    """Put a federation together; what is not given is made from the config.

    With `shares`, the training data of `data` are an example of what users have.
    """
    check_metrics(metrics or {})
    device = _device(config.device)
    model.to(device)
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    example, targets = _example(data.train, config.batch_size).to(device, dtype).rows()
    takes_several(model, example)
    classes = data.classes if loss is cross_entropy else 0
    outputs = check_fit(model, example, classes, model_name, config.batch_size)
    loss = checked_loss(loss, outputs, targets)

    rng = np.random.default_rng([config.seed, 0])  # rounds are numbered from 1
    # Indices are the caller's own and may name any sample, so then nothing is held back.
    own = shares is not None or indices is not None
    kept, held = holdout(len(data.train), 0.0 if own else config.validation, rng)
    if shares is None:
        train = data.train.subset(kept)
        parts = (
            split(config.split, train.labels, config.users, rng)
            if indices is None
            else given(indices, len(train))
        )
        shares = Split(train, parts)
    shares = shares.to(device, dtype)
    if isinstance(shares, Split):  # whose sizes are known: batch norm refuses a single row
        smallest = int(shares.sizes(np.arange(len(shares))).min())
        check_fit(model, example, classes, model_name, min(smallest, config.batch_size))
    seen_as = Layers.of(model, layers or config.given_layers(), example)
    local = LocalWork(config.local_steps, config.local_epochs, config.client_lr)
    batch_size: int | Ints = config.batch_size
    made = method or config.make_method()
    compression = Compression.parse(config.compress)
    if world is None and config.fleet:
        fleet = paired(config, fleet, shares)
        cost = Cost.of(model, seen_as, example, compression)
        if config.batches_for(made) == "equal-time":
            # Where nobody is cut off, batches need not fit.
            seconds = config.first_deadline() if made.has_deadline else None
            batch_size = equal_time(fleet.devices, cost, config.batch_size, local.steps, seconds)
            _check_smallest(model, example, classes, int(batch_size.min()))
        batches = Batches(shares, batch_size, local.epochs)
        timed = partial(
            Timing, fleet.devices, rows=batches.usual_sizes, planned=batches.steps(local)
        )
        times, learned = timed(cost), None
        if config.reach == "learned":
            expected = times.expected_done(np.arange(len(shares)))
            learned = LearnedReach(expected[:, : times.layers])
        world = OnFleet(
            times,
            None if config.deadline is None else deadlines.parse(config.deadline),
            lambda width: timed(Cost.of(narrowed(model, width), seen_as, example, compression)),
            learned,
        )
    elif world is None:
        world = worlds.parse(config.depth, len(shares), len(seen_as), config.stragglers)
    attack = Attack.parse(config.attack, config.seed)
    simulation = Simulation(
        make_engine(config.engine, model, seen_as, loss, example, local.several or made.more_steps),
        made,
        world if isinstance(world, World) else AtDeadline(world),
        shares,
        schedule or schedules.schedule(config.lr, config.rounds or 1),
        config.make_optimiser(),
        batch_size,
        config.seed,
        _cohort(config, shares),
        config.weigh == "samples",
        local,
        config.reach == "counted",
        None if config.robust in ("auto", "none") else Robust(config.robust, config.tolerate),
        None if attack is None else Attackers(attack, len(shares), config.attackers),
        compression,
    )
    test = data.test.to(device, dtype) if tested else None
    watched = data.train.subset(held).to(device, dtype) if len(held) else test
    # A round's backward pass costs about two forward passes more than an evaluation of as many
    # rows, so evaluating once every so many rounds is at most a third of the work.
    measured = 0 if watched is None else len(watched)
    rows = simulation.cohort.size * int(simulation.planned(np.arange(1))[0]) * config.batch_size
    every = config.eval_every or max(1, ceil(measured / rows))
    return Training(
        simulation,
        watched,
        test,
        every,
        data.source,
        metrics or {},
        config.eval_interval(),
        some(shares, SLOWEST_ROWS, _few(fleet.slowest())) if fleet and tested else None,
    )


def _check_smallest(model: nn.Module, example: Any, classes: int, rows: int) -> None:
    """Batch norm refuses a single row, which equal-time batches of slow users may have."""
    try:
        check_fit(model, example, classes, "", rows)
    except SalfError:
        raise SalfError(
            f"with batches equal-time the slowest user has {rows} row, which is too few for this "
            "model (batch norm needs 2): use a larger batch size or a longer deadline."
        ) from None


def _few(users: Ints, most: int = 500) -> Ints:
    """Some of many users, evenly spread."""
    places = np.unique(np.linspace(0, len(users) - 1, min(most, len(users))).astype(np.int64))
    return users[places]


def paired(config: Config, fleet: Fleet | None, shares: Shares) -> Fleet:
    """The fleet of a config, or the one given, with its devices dealt to the users."""
    if fleet is None:
        fleet = fleets.parse(config.fleet, len(shares), config.seed, config.availability)
    elif len(fleet) != len(shares):
        raise SalfError(f"the fleet has {len(fleet)} devices, but there are {len(shares)} users.")
    fleet = _dealt(config, fleet, shares)
    available = fleet.devices.availability
    if not isinstance(available, ByLabels):
        return fleet
    if not isinstance(shares, Split):
        raise SalfError("participation by labels needs one data set that is split among the users.")
    return fleets.with_availability(fleet, available.of_users(shares.label_mixes()))


def _dealt(config: Config, fleet: Fleet, shares: Shares) -> Fleet:
    """The devices in the order of the users who get them."""
    how = config.pair or fleet.devices.pair
    if how == "random":
        return fleet
    if not isinstance(shares, Split):
        raise SalfError(
            f"pair {how!r} needs one data set that is split among the users, not users' own "
            "data: order the fleet's devices yourself."
        )
    everybody = np.arange(len(shares))
    if how == "size":
        return fleet.paired(how, sizes=shares.sizes(everybody))
    return fleet.paired(how, dominant=shares.usual_labels(everybody))


def _cohort(config: Config, shares: Shares) -> Cohort:
    users = len(shares)
    weights = None
    if config.cohort_by == "samples":
        weights = shares.sizes(np.arange(users)).astype(float)
    return Cohort(users, config.cohort_size(), weights)


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
