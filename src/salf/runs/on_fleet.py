"""The world of a config with a fleet: devices dealt to users, batches that suit them, a clock."""

from dataclasses import replace

import numpy as np
from torch import nn

from salf.common.errors import SalfError
from salf.core.arrivals import Ints
from salf.core.compression import Compression
from salf.core.narrow import narrowed
from salf.data import Partitioned, UsersData
from salf.data.sampling import Batches
from salf.methods import Method
from salf.models import check_fit
from salf.problem import Problem
from salf.runs.config import Config
from salf.worlds.fleet import deadlines
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.by_labels import ByLabels
from salf.worlds.fleet.cost import Cost, equal_time
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.learned import LearnedReach
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet


def fleet_world(
    config: Config, problem: Problem, method: Method, fleet: Fleet | None = None
) -> tuple[OnFleet, int | Ints, Fleet]:
    """The world of a config's devices and deadline, the batches of its users, and the fleet.

    Batches have one size for all users, or one for each.
    """
    users, local = problem.users_data, config.local_work()
    fleet = _paired(config, fleet, users)

    def cost_of(model: nn.Module) -> Cost:
        assert problem.example is not None
        return Cost.of(model, problem.layers, problem.example, Compression.parse(config.compress))

    cost, batch_size = cost_of(problem.model), config.batch_size
    sizes: int | Ints = batch_size
    if config.batches_for(method) == "equal-time":
        # Where nobody is cut off, batches need not fit.
        seconds = config.first_deadline() if method.asks.deadline else None
        sizes = equal_time(fleet.devices, cost, batch_size, local.steps, seconds)
        assert problem.example is not None
        # Batch norm refuses a single row, which slow users may have.
        check_fit(problem.model, problem.example, 0, config.model, int(sizes.min()))
    batches = Batches(users, sizes, local.epochs)

    def timed(cost: Cost) -> Timing:
        return Timing(fleet.devices, cost, batches.usual_sizes, batches.steps(local))

    times, learned = timed(cost), None
    if config.reach == "learned":
        expected = times.expected_done(np.arange(times.users))
        learned = LearnedReach(expected[:, : times.layers])
    deadline = None if config.deadline is None else deadlines.parse(config.deadline)
    world = OnFleet(
        times, deadline, lambda width: timed(cost_of(narrowed(problem.model, width))), learned
    )
    return world, sizes, fleet


def _paired(config: Config, fleet: Fleet | None, data: UsersData) -> Fleet:
    """The fleet of a config, or the one given, with its devices dealt to the users."""
    if fleet is None:
        fleet = fleets.parse(config.fleet, len(data), config.seed, config.availability)
    elif len(fleet) != len(data):
        raise SalfError(f"the fleet has {len(fleet)} devices, but there are {len(data)} users.")
    elif fleet.devices.availability.always:
        fleet = fleet.available(config.availability, config.seed)
    fleet = _dealt(config, fleet, data)
    available = fleet.devices.availability
    if not isinstance(available, ByLabels):
        return fleet
    if not isinstance(data, Partitioned):
        raise SalfError("participation by labels needs one data set that is split among the users.")
    of_users = available.of_users(data.label_mixes())
    return Fleet.made(fleet.name, replace(fleet.devices, availability=of_users))


def _dealt(config: Config, fleet: Fleet, data: UsersData) -> Fleet:
    """The devices in the order of the users who get them."""
    how = config.pair or fleet.devices.pair
    if how == "random":
        return fleet
    if not isinstance(data, Partitioned):
        raise SalfError(
            f"pair {how!r} needs one data set that is split among the users, not users' own "
            "data: order the fleet's devices yourself."
        )
    everybody = np.arange(len(data))
    if how == "size":
        return fleet.paired(how, sizes=data.sizes(everybody))
    return fleet.paired(how, dominant=data.label_mixes().argmax(axis=1))
