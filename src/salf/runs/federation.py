"""From settings, and Python objects in place of some, to a problem and to its training."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from salf.common import Report
from salf.common.errors import SalfError
from salf.core.arrivals import Ints, evenly
from salf.core.compression import Compression
from salf.core.draws import Keyed
from salf.core.inputs import takes_several
from salf.core.layers import Layers, Prefixes
from salf.core.narrow import narrowed
from salf.core.server import Schedule, schedule
from salf.data import DataSet, Partitioned, Samples, UsersData, holdout, load, some, split
from salf.data import given as by_indices
from salf.data.loading import FROM_PATH, cache_folder
from salf.data.named import RECIPES
from salf.data.sampling import Batches, Cohort
from salf.data.users_data import Index
from salf.engines import Loss, cross_entropy
from salf.engines.losses import checked as checked_loss
from salf.methods import Method
from salf.models import build, check_fit
from salf.problem import Metric, Problem
from salf.problem import check_names as check_metrics
from salf.runs.config import Config
from salf.runs.settings import Settings
from salf.runs.training import Evaluation, Training
from salf.simulation import Recipe, Simulation
from salf.stages.pipeline import Stages
from salf.worlds import base as worlds
from salf.worlds.base import AtDeadline, World
from salf.worlds.depth import DepthDistribution
from salf.worlds.fleet.availability import ByLabels
from salf.worlds.fleet.cost import Cost, equal_time
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.preview import Preview, preview
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet

SLOWEST_ROWS = 5_000  # of the slowest users' data are enough to measure the accuracy on


@dataclass(frozen=True, eq=False)
class Given:
    """Python objects in place of settings; what is None is made from the config.

    A problem stands for model, data, layers, loss and metrics. `split` are each user's indices.
    Where `users` have data of their own, `data` are an example of them.
    """

    problem: Problem | None = None
    model: nn.Module | None = None
    data: DataSet | None = None
    users: UsersData | None = None
    split: Sequence[Sequence[int]] | None = None
    tested: bool = True  # whether there are test data
    layers: Sequence[Prefixes] | None = None
    loss: Loss = cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    method: Method | None = None
    world: DepthDistribution | World | None = None
    fleet: Fleet | None = None
    lr: Schedule | None = None

    def copied(self) -> "Given":
        """With a copy of the model, to train that."""
        if (problem := self.problem) is not None:
            return replace(self, problem=replace(problem, model=deepcopy(problem.model)))
        return replace(self, model=deepcopy(self.model))


def load_data(config: Settings, report: Report | None = None) -> DataSet:
    """The data set of a config; `report` gets a line when it is being fetched."""
    return load(config.data, Path(config.data_dir) if config.data_dir else None, report=report)


def data_files(config: Settings) -> tuple[Path, ...]:
    """The files and folders that loading a config's data and fleet reads, if they are there."""
    kind, _, path = config.data.partition(":")
    at = [Path(path).expanduser()] if kind in FROM_PATH and path else []
    at += [cache_folder() / config.data] if config.data in RECIPES else []
    at += [Path(config.data_dir)] if config.data_dir else []
    named = [str(vars(config).get(name)) for name in ("fleet", "availability", "deadline")]
    at += [Path(file) for file in named if file.endswith(".csv")]
    return tuple(place.absolute() for place in at if place.exists())


def problem_of(
    config: Settings, report: Report | None = None, given: Given | None = None
) -> Problem:
    """The problem that a config names, with some of its parts given."""
    if given is None and config.given:
        raise SalfError(
            f"the config is from a Python run with its own {', '.join(config.given)}: repeat it "
            "with salf.train."
        )
    given = given or Given()
    if given.problem is not None:
        return given.problem
    check_metrics(given.metrics)
    data = load_data(config, report) if given.data is None else given.data
    users, held = given.users, np.empty(0, np.int64)
    if users is None and given.split is not None:
        # Indices are the caller's own and may name any sample, so then nothing is held back.
        users = Partitioned(data.train, by_indices(given.split, len(data.train)))
    elif users is None:
        kept, held, of_users = _divided(config, data)
        users = Partitioned(data.train.subset(kept), of_users)
    problem = _fitted(config, given, data, data.train, users)
    device, dtype = place_of(problem.model)
    problem.test = data.test.to(device, dtype) if given.tested else None
    problem.validation = data.train.subset(held).to(device, dtype) if len(held) else problem.test
    return problem


def problem_of_user(config: Settings, user: int) -> Problem:
    """The problem as user `user` (from 0) has it: with its own data, and nothing held out."""
    data = load_data(config)
    kept, _, of_users = _divided(config, data)
    own = data.train.subset(kept[of_users[user]])
    return _fitted(config, Given(), data, own, Partitioned(own, [np.arange(len(own))]))


def _divided(config: Settings, data: DataSet) -> tuple[Index, Index, Any]:
    """The samples kept for training, those held out, and which of the former each user has."""
    rng = np.random.default_rng([config.seed, 0])  # rounds are numbered from 1
    kept, held = holdout(len(data.train), config.validation, rng)
    return kept, held, split(config.split, data.train.labels[kept], config.users, rng)


def _fitted(
    config: Settings, given: Given, data: DataSet, samples: Samples, users: UsersData
) -> Problem:
    """The problem, once model, loss and users' data, of which there are samples, fit together."""
    model = given.model
    if model is None:
        model = build(config.model, data.train.shape, data.classes, config.seed)
    model = model.to(_device(getattr(config, "device", "cpu")))
    device, dtype = place_of(model)
    example, targets = _example(samples, config.batch_size).to(device, dtype).rows()
    takes_several(model, example)
    classes = data.classes if given.loss is cross_entropy else 0
    name = config.given.get("model", config.model)
    outputs = check_fit(model, example, classes, name, config.batch_size)
    loss = checked_loss(given.loss, outputs, targets)
    users = users.to(device, dtype)
    if isinstance(users, Partitioned):  # whose sizes are known: batch norm refuses a single row
        smallest = int(users.sizes(np.arange(len(users))).min())
        check_fit(model, example, classes, name, min(smallest, config.batch_size))
    layers = Layers.of(model, given.layers or config.given_layers(), example)
    return Problem(model, layers, users, loss, example, metrics=given.metrics, source=data.source)


def from_config(
    config: Config, given: Given | None = None, report: Report | None = None
) -> Training:
    """The federation that a config describes; `report` gets a line when data are being fetched."""
    problem, given = problem_of(config, report, given), given or Given()
    users, world, slowest = problem.users_data, given.world, None
    method = given.method or config.make_method()
    batch_size: int | Ints = config.batch_size
    if world is None and config.fleet:
        world, batch_size, fleet = fleet_world(config, problem, method, given.fleet)
        if problem.test is not None:
            slowest = some(users, SLOWEST_ROWS, evenly(fleet.slowest(), 500))
    elif world is None:
        world = worlds.parse(config.depth, len(users), len(problem.layers), config.stragglers)
    world = world if isinstance(world, World) else AtDeadline(world)
    recipe = Recipe(
        given.lr or schedule(config.lr, config.rounds or 1),
        config.make_optimiser(),
        batch_size,
        config.local_work(),
        cohort_of(config, users),
        config.weigh == "samples",
        config.engine,
    )
    stages = Stages(
        config.make_robust(),
        Compression.parse(config.compress) if config.compress else None,
        config.make_attackers(),
        config.reach == "counted",
    )
    simulation = Simulation(problem, method, world, recipe, stages, config.seed)
    evaluation = evaluation_of(config, problem)
    evaluation.slowest, evaluation.by = slowest, simulation.engine
    attack = stages.attackers and stages.attackers.attack
    if attack and attack.kind == "backdoor" and problem.test is not None:
        evaluation.backdoor = Samples(*attack.tests(*problem.test.rows()))
    return Training(simulation, evaluation)


def cohort_of(config: Config, users: UsersData) -> Cohort:
    """Who takes part in the rounds of a config."""
    weights = None
    if config.cohort_by == "samples":
        weights = users.sizes(np.arange(len(users))).astype(float)
    return Cohort(len(users), config.cohort_size(), weights)


def preview_of(config: Config, report: Report | None = None) -> Preview:
    """The preview of a config: its model, its users' batches, its fleet and its first deadline."""
    if not config.fleet:
        raise SalfError("a preview needs a fleet: set one, such as fleet='phones'.")
    # SALF, whose batches may have to fit the deadline; without one FedAvg, which needs none.
    method = "fedavg" if config.deadline is None else "salf"
    config = config.changed(method=method)
    problem = problem_of(config, report)
    world, _, _ = fleet_world(config, problem, config.make_method())
    layers = tuple(layer.name for layer in problem.layers)
    cohort, nobody = cohort_of(config, problem.users_data), np.empty(0, np.int64)
    asked = lambda t: cohort.draw(Keyed(config.seed, t), nobody)  # noqa: E731
    return preview(config.fleet, world.timing, layers, config.deadline, asked)


def evaluation_of(config: Settings, problem: Problem) -> Evaluation:
    """When the model of a config is evaluated; by default, a third of the work at most.

    A round's backward pass costs about two forward passes more than evaluating as many rows.
    """
    every, watched = config.eval_every, problem.validation
    if not every:
        steps = planned_steps(config, problem.users_data, np.arange(1))[0]
        samples = config.cohort_size() * int(steps) * config.batch_size
        every = max(1, ceil((0 if watched is None else len(watched)) / samples))
    seconds = config.eval_interval() if isinstance(config, Config) else 0.0
    return Evaluation(problem, every, seconds)


def planned_steps(config: Settings, users: UsersData, some: Ints) -> Ints:
    """How many local steps some of the users are to do in a round, with batches of equal size."""
    local = config.local_work()
    return Batches(users, config.batch_size, local.epochs).steps(local)(some)


def _example(samples: Samples, batch_size: int) -> Samples:
    """Some rows from all over the data, which may be sorted, and the one with the largest label."""
    count = min(max(batch_size, 8), len(samples))
    spread = torch.linspace(0, len(samples) - 1, count - 1).long()
    largest = int(samples.labels.argmax()) * len(samples) // samples.labels.numel()
    return samples.subset(torch.cat([spread, torch.tensor([largest])]))


def place_of(model: nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """Where the data of a model belong, and of which type they are."""
    parameters = list(model.parameters())
    dtype = next((each.dtype for each in parameters if each.is_floating_point()), None)
    return (parameters[0].device if parameters else torch.device("cpu")), dtype


def _device(name: str) -> torch.device:
    """The device of this name, once PyTorch has computed something on it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):
        kinds = {"cuda": torch.cuda, "mps": torch.backends.mps}
        there = ["cpu", *(kind for kind, of in kinds.items() if of.is_available())]
        raise SalfError(
            f"PyTorch cannot use a device {name!r} on this machine: set device to "
            f"{' or '.join(there)}."
        ) from None
    return device


def fleet_world(
    config: Config, problem: Problem, method: Method, fleet: Fleet | None = None
) -> tuple[OnFleet, int | Ints, Fleet]:
    """The world of a config's devices and deadline, the batches of its users, and the fleet.

    Batches have one size for all users, or one for each.
    """
    users, local, deadline = problem.users_data, config.local_work(), config.make_deadline()
    fleet = _dealt(config, fleet, users)

    def cost_of(model: nn.Module) -> Cost:
        assert problem.example is not None
        return Cost.of(model, problem.layers, problem.example, Compression.parse(config.compress))

    cost, batch_size = cost_of(problem.model), config.batch_size
    sizes: int | Ints = batch_size
    if config.batches_for(method) == "equal-time":
        # Where nobody is cut off, or T_max is found during the run, batches need not fit.
        seconds = (deadline.of(1, 0.0) or None) if deadline and method.asks.deadline else None
        sizes = equal_time(fleet, cost, batch_size, local.steps, seconds)
        assert problem.example is not None
        # Batch norm refuses a single row, which slow users may have.
        check_fit(problem.model, problem.example, 0, config.model, int(sizes.min()))
    batches = Batches(users, sizes, local.epochs)

    def timed(cost: Cost) -> Timing:
        return Timing(fleet, cost, batches.usual_sizes, batches.steps(local))

    narrow = lambda width: timed(cost_of(narrowed(problem.model, width)))  # noqa: E731
    return OnFleet(timed(cost), deadline, narrow), sizes, fleet


def _dealt(config: Config, fleet: Fleet | None, data: UsersData) -> Fleet:
    """The fleet of a config, or the one given, with its devices in the order of the users."""
    if fleet is None:
        fleet = Fleet(config.fleet, len(data), config.seed, config.availability)
    elif len(fleet) != len(data):
        raise SalfError(f"the fleet has {len(fleet)} devices, but there are {len(data)} users.")
    elif fleet.availability.always:
        fleet = fleet.available(config.availability, config.seed)
    how, available = config.pair or fleet.pair, fleet.availability
    if not isinstance(data, Partitioned):
        if how != "random":
            raise SalfError(
                f"pair {how!r} needs one data set that is split among the users, not users' own "
                "data: order the fleet's devices yourself."
            )
        if isinstance(available, ByLabels):
            raise SalfError(
                "participation by labels needs one data set that is split among the users."
            )
        return fleet
    if how == "size":
        fleet = fleet.paired(data.sizes(np.arange(len(data))))
    elif how == "labels":
        fleet = fleet.paired(data.label_mixes().argmax(axis=1))
    if not isinstance(available, ByLabels):
        return fleet
    return fleet.changed(availability=available.of_users(data.label_mixes()))
