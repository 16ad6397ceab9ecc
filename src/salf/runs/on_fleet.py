"""The world of a config with a fleet: devices dealt to users, batches that suit them, a clock."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Ints
from salf.data import Partitioned, UsersData
from salf.data.sampling import Batches, LocalWork
from salf.methods import Method
from salf.runs.config import Config
from salf.worlds.fleet import deadlines
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.by_labels import ByLabels
from salf.worlds.fleet.cost import Cost, equal_time
from salf.worlds.fleet.devices import Devices, Fleet
from salf.worlds.fleet.learned import LearnedReach
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet


def paired(config: Config, fleet: Fleet | None, data: UsersData) -> Fleet:
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
    return fleet.paired(how, dominant=data.usual_labels(everybody))


def batch_sizes(
    config: Config, method: Method, devices: Devices, cost: Cost, local: LocalWork
) -> int | Ints:
    """The batch size of all users, or of each."""
    if config.batches_for(method) != "equal-time":
        return config.batch_size
    # Where nobody is cut off, batches need not fit.
    seconds = config.first_deadline() if method.asks.deadline else None
    return equal_time(devices, cost, config.batch_size, local.steps, seconds)


def world_of(
    config: Config,
    devices: Devices,
    cost: Cost,
    narrow_cost: Callable[[float], Cost],
    batches: Batches,
    local: LocalWork,
) -> OnFleet:
    """The devices with the config's deadline; `narrow_cost` is of the model at another width."""

    def timed(cost: Cost) -> Timing:
        return Timing(devices, cost, batches.usual_sizes, batches.steps(local))

    times, learned = timed(cost), None
    if config.reach == "learned":
        expected = times.expected_done(np.arange(times.users))
        learned = LearnedReach(expected[:, : times.layers])
    deadline = None if config.deadline is None else deadlines.parse(config.deadline)
    return OnFleet(times, deadline, lambda width: timed(narrow_cost(width)), learned)
