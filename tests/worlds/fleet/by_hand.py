"""Three users whose times can be worked out by hand."""

import numpy as np

from salf.core.draws import Keyed
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.devices import MULTIPLY_ADDS, DeviceClass, Fleet
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet

# Two layers. A row costs 3 until layer 2 is done (2 forward, 1 backward), then 2 for layer 1.
PASSES = np.array([[1.0, 1.0], [2.0, 1.0]])
COST = Cost(*PASSES, bytes=np.array([20.0, 10.0]), products=PASSES)
# With one row, times are the same on devices on which half of them are for launching.
HALF = DeviceClass("half", multiply_add=0.5, launch=0.5)
CLASSES = [MULTIPLY_ADDS]
# Layer 2 after 0.6, 1.2 and 3 s, all after 1, 2 and 5 s.
SPEEDS = [5.0, 2.5, 1.0]
EVERYBODY = np.arange(3)


def timing_of(fleet, cost, rows=1, steps=1):
    """The times of a fleet whose users all have so many rows and local steps."""
    return Timing(fleet, cost, lambda users: rows + 0 * users, lambda users: steps + 0 * users)


def timing(speeds=SPEEDS, rows=1, steps=1, **fleet):
    made = Fleet.of(speeds, counted=CLASSES * len(speeds), **fleet)
    return timing_of(made, COST, rows, steps)


def world(deadline=2.0, narrow=None, **settings):
    limit = DeadlineSchedule((deadline,)) if isinstance(deadline, float) else deadline
    return OnFleet(timing(**settings), limit, narrow)


def rounds(world, count, users=EVERYBODY, seed=0):
    """The arrivals of the first rounds."""
    memory = world.start()
    found = []
    for t in range(1, count + 1):
        arrived, memory = world.arrivals(t, Keyed(seed, t), users, memory)
        found.append(world.checked(arrived, t))
    return found, memory
