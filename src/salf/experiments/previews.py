"""What a run would do on its fleet, without training it."""

import numpy as np

from salf.draws import Keyed
from salf.errors import SalfError
from salf.experiments.config import Config
from salf.experiments.federation import from_config
from salf.fleet.preview import Cohorts, Preview, preview
from salf.fleet.world import OnFleet
from salf.progress import Report
from salf.sampling import Cohort


def preview_of(config: Config, report: Report | None = None) -> Preview:
    """The preview of a config: its model, its users' batches, its fleet and its deadline.

    Of a schedule, the first deadline; of `auto`, the one it starts with.
    """
    if not config.fleet:
        raise SalfError("a preview needs a fleet: add --fleet, such as --fleet phones.")
    # SALF, whose batches may have to fit the deadline; without one FedAvg, which needs none.
    method = "fedavg" if config.deadline is None else "salf"
    simulation = from_config(config.changed(method=method), report).simulation
    world = simulation.world
    assert isinstance(world, OnFleet)
    layers = tuple(layer.name for layer in simulation.engine.layers)
    cohort = simulation.cohort
    drawn = None if cohort.size == cohort.users else _cohorts(config.seed, cohort)
    return preview(config.fleet, world.timing, layers, config.deadline, drawn)


def _cohorts(seed: int, cohort: Cohort) -> Cohorts:
    nobody = np.empty(0, np.int64)
    return lambda t: cohort.draw(Keyed(seed, t), nobody)
