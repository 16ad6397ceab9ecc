"""From settings to a federation that can be trained."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from salf.common.errors import SalfError
from salf.common.progress import Report
from salf.core import schedules
from salf.core.arrivals import Ints, evenly
from salf.core.compression import Compression
from salf.core.inputs import takes_several
from salf.core.layers import Layers, Prefixes
from salf.core.narrow import narrowed
from salf.core.schedules import Schedule
from salf.data import DataSet, Partitioned, Samples, UsersData, given, holdout, load, some, split
from salf.data.sampling import Batches, Cohort, LocalWork
from salf.engines import Loss, cross_entropy
from salf.engines import engine as make_engine
from salf.engines.losses import checked as checked_loss
from salf.evaluation import Metric
from salf.evaluation import check_names as check_metrics
from salf.methods import Method
from salf.models import build, check_fit
from salf.runs.config import Config
from salf.runs.on_fleet import batch_sizes, paired, world_of
from salf.runs.training import Training
from salf.simulation import Simulation
from salf.stages.attacks import Attack, Attackers
from salf.stages.pipeline import Stages
from salf.worlds import base as worlds
from salf.worlds.base import AtDeadline, World
from salf.worlds.depth import DepthDistribution
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet

SLOWEST_ROWS = 5_000  # of the slowest users' data are enough to measure the accuracy on


def from_config(
    config: Config,
    report: Report | None = None,
    method: Method | None = None,
    world: World | None = None,
    fleet: Fleet | None = None,
) -> Training:
    """The federation a config describes, or the same with another method, world or fleet.

    `report` gets a line when data are being fetched.
    """
    if config.given:
        raise SalfError(
            f"the config is from a Python run with its own {', '.join(config.given)}: repeat it "
            "with salf.train."
        )
    data = load_data(config, report)
    model = build(config.model, data.train.shape, data.classes, config.seed)
    return assemble(
        config, model, data, method=method, world=world, fleet=fleet, model_name=config.model
    )


def load_data(config: Config, report: Report | None = None) -> DataSet:
    """The data set of a config; `report` gets a line when it is being fetched."""
    return load(config.data, Path(config.data_dir) if config.data_dir else None, report=report)


def assemble(
    config: Config,
    model: nn.Module,
    data: DataSet,
    *,
    method: Method | None = None,
    indices: Sequence[Sequence[int]] | None = None,
    users_data: UsersData | None = None,
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

    With `users_data`, the training data of `data` are an example of what users have.
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
    own = users_data is not None or indices is not None
    kept, held = holdout(len(data.train), 0.0 if own else config.validation, rng)
    if users_data is None:
        train = data.train.subset(kept)
        if indices is None:
            users_data = Partitioned(train, split(config.split, train.labels, config.users, rng))
        else:
            users_data = Partitioned(train, given(indices, len(train)))
    users_data = users_data.to(device, dtype)
    if isinstance(
        users_data, Partitioned
    ):  # whose sizes are known: batch norm refuses a single row
        smallest = int(users_data.sizes(np.arange(len(users_data))).min())
        check_fit(model, example, classes, model_name, min(smallest, config.batch_size))
    seen_as = Layers.of(model, layers or config.given_layers(), example)
    local = LocalWork(config.local_steps, config.local_epochs, config.client_lr)
    batch_size: int | Ints = config.batch_size
    made = method or config.make_method()
    compression = Compression.parse(config.compress)
    if world is None and config.fleet:
        fleet = paired(config, fleet, users_data)
        cost_of = partial(Cost.of, layers=seen_as, example=example, compression=compression)
        cost = cost_of(model)
        batch_size = batch_sizes(config, made, fleet.devices, cost, local)
        if not isinstance(batch_size, int):
            _check_smallest(model, example, classes, int(batch_size.min()))
        world = world_of(
            config,
            fleet.devices,
            cost,
            lambda width: cost_of(narrowed(model, width)),
            Batches(users_data, batch_size, local.epochs),
            local,
        )
    elif world is None:
        world = worlds.parse(config.depth, len(users_data), len(seen_as), config.stragglers)
    attack = Attack.parse(config.attack, config.seed)
    simulation = Simulation(
        make_engine(
            config.engine, model, seen_as, loss, example, local.several or made.asks.more_steps
        ),
        made,
        world if isinstance(world, World) else AtDeadline(world),
        users_data,
        schedule or schedules.schedule(config.lr, config.rounds or 1),
        config.make_optimiser(),
        batch_size,
        config.seed,
        _cohort(config, users_data),
        config.weigh == "samples",
        local,
        Stages(
            config.make_robust(),
            compression,
            None if attack is None else Attackers(attack, len(users_data), config.attackers),
            config.reach == "counted",
        ),
    )
    test = data.test.to(device, dtype) if tested else None
    watched = data.train.subset(held).to(device, dtype) if len(held) else test
    return Training(
        simulation,
        watched,
        test,
        config.eval_every or _cheap_interval(simulation, watched, config.batch_size),
        data.source,
        metrics or {},
        config.eval_interval(),
        some(users_data, SLOWEST_ROWS, evenly(fleet.slowest(), 500)) if fleet and tested else None,
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


def _cheap_interval(simulation: Simulation, watched: Samples | None, batch_size: int) -> int:
    """The rounds between evaluations that keep these at about a third of the work at most.

    A round's backward pass costs about two forward passes more than an evaluation of as many rows.
    """
    measured = 0 if watched is None else len(watched)
    rows = simulation.cohort.size * int(simulation.planned(np.arange(1))[0]) * batch_size
    return max(1, ceil(measured / rows))


def _cohort(config: Config, users_data: UsersData) -> Cohort:
    users = len(users_data)
    weights = None
    if config.cohort_by == "samples":
        weights = users_data.sizes(np.arange(users)).astype(float)
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
        raise SalfError(f"the device {name!r} cannot be used: {first}. Use device='cpu'.") from None
    return device
