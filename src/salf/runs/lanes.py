"""What users did in the first rounds of a run on a fleet, for its page."""

from typing import Any

import numpy as np

from salf.common.figures import LINK, LOST
from salf.core.arrivals import evenly
from salf.core.draws import Keyed
from salf.runs.training import History
from salf.simulation import Simulation
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.world import OnFleet, Waiting

ROUNDS, USERS = 3, 12
MOST_STAGES = 64  # of a user's round: more cannot be told apart


def lanes(history: History, simulation: Simulation) -> list[dict[str, Any]]:
    """By round, the times of some of its users: pieces of (begin, end, layer, LINK or LOST).

    Empty where rounds overlap or devices come and go: there is no one time line.
    """
    world, found = simulation.world, list[dict[str, Any]]()
    if type(world) not in (OnFleet, Waiting):
        return []
    assert isinstance(world, OnFleet)
    timing, limit, start = world.timing, world.deadline, 0.0
    if not timing.devices.availability.always:
        return []
    for row in history.rows[:ROUNDS]:
        draws, seconds = Keyed(simulation.seed, row.round), (row.clock or 0.0) - start
        asked = simulation.cohort.draw(draws, world.busy(row.round, simulation.memory))
        times = timing.round(draws, asked, start)
        start += seconds
        if times.complete.shape[1] > MOST_STAGES:
            return []
        # Rounding must not take the last layer from the user that ended the round.
        reached = times.reached(seconds * (1 + 1e-9))
        pieces = []
        order = np.argsort(timing.expected(asked), kind="stable")
        for user in (shown := evenly(order, USERS)).tolist():
            done, begin = int(reached[user]), float(times.tasks.download[user])
            mine = [(0.0, min(begin, seconds), LINK)]
            for stage in range(done):
                end = float(times.tasks.download[user] + times.complete[user, stage])
                mine.append((begin, end, world.layers - stage % world.layers))
                begin = end
            last = float(times.done[user, done - 1]) if done else seconds
            mine.append((begin, last, LINK if done else LOST))
            pieces.append([[round(a, 7), round(b, 7), kind] for a, b, kind in mine if b > a])
        fixed = limit.of(row.round, 0.0) if isinstance(limit, DeadlineSchedule) else None
        found.append(
            {
                "round": row.round,
                "seconds": seconds,
                "deadline": fixed,
                "users": (asked[shown] + 1).tolist(),
                "pieces": pieces,
            }
        )
    return found
