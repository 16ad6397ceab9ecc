"""The preview of a run on its fleet, without training it."""

import numpy as np

from salf.common.errors import SalfError
from salf.common.progress import Report
from salf.core.draws import Keyed
from salf.runs.config import Config
from salf.runs.federation import cohort_of, problem_of
from salf.runs.on_fleet import fleet_world
from salf.worlds.fleet.preview import Preview, preview


def preview_of(config: Config, report: Report | None = None) -> Preview:
    """The preview of a config: its model, its users' batches, its fleet and its deadline.

    Of a schedule, the first deadline; of `auto`, the one it starts with.
    """
    if not config.fleet:
        raise SalfError("a preview needs a fleet: set one, such as fleet='phones'.")
    # SALF, whose batches may have to fit the deadline; without one FedAvg, which needs none.
    method = "fedavg" if config.deadline is None else "salf"
    config = config.changed(method=method)
    problem = problem_of(config, report)
    world, _, _ = fleet_world(config, problem, config.make_method())
    layers = tuple(layer.name for layer in problem.layers)
    cohort, drawn = cohort_of(config, problem.users_data), None
    if cohort.size != cohort.users:
        nobody = np.empty(0, np.int64)
        drawn = lambda t: cohort.draw(Keyed(config.seed, t), nobody)  # noqa: E731
    return preview(config.fleet, world.timing, layers, config.deadline, drawn)
