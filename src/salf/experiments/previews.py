"""What a run would do on its fleet, without training it."""

from salf.errors import SalfError
from salf.experiments.config import Config
from salf.experiments.training import from_config
from salf.fleet import deadlines
from salf.fleet.preview import Preview, preview
from salf.fleet.world import OnFleet, deadline_for
from salf.progress import Report


def preview_of(config: Config, report: Report | None = None) -> Preview:
    """The preview of a config: its model, its users' batches, its fleet and its deadline.

    Of a schedule, the first deadline; of `auto`, the one it starts with.
    """
    if not config.fleet:
        raise SalfError("which devices do users have? Add --fleet, such as --fleet phones.")
    # SALF, whose batches may have to fit the deadline; without one FedAvg, which needs none.
    method = "fedavg" if config.deadline is None else "salf"
    simulation = from_config(config.changed(method=method), report).simulation
    world = simulation.world
    assert isinstance(world, OnFleet)
    seconds = None
    if config.deadline is not None:
        deadline = deadlines.parse(config.deadline)
        if isinstance(deadline, deadlines.Auto):
            seconds = deadline_for(world.timing, deadline.reach)
        else:
            seconds = deadline.of(1, 0.0)
    layers = tuple(layer.name for layer in simulation.engine.layers)
    return preview(config.fleet, world.timing, layers, seconds)
