"""Rounds by a simulated clock: who arrives, how far, and how long it takes.

A round ends at its deadline or when all are there (`OnFleet`, `Narrowed`), or when the slowest is
there (`Waiting`). late.py and timely.py have the other rules.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Floats, Ints, evenly
from salf.core.draws import Draws
from salf.worlds.base import Arrived, Memory, World
from salf.worlds.fleet.deadlines import Auto, Deadline, missing
from salf.worlds.fleet.learned import LearnedReach
from salf.worlds.fleet.round import Round
from salf.worlds.fleet.timing import Timing

# What is remembered, [2, 1 + users]: first the clock and the deadline of the next round; then, of
# every user at work on an update, the round it was given its model and when it will deliver. Where
# reach is learned, what is known of each user follows below.
CLOCK, TMAX = (0, 0), (1, 0)
LEARNED = 2


class OnFleet(World):
    """A fleet with a deadline: a round ends at T_max, or earlier if all users are done.

    Reach, and so p_l, is what the fleet's law says, or with `learned` what the depths seen so far
    do.
    """

    counts_steps = True
    surely = False  # whether every layer is reached for sure, sooner or later, or nobody asks
    has_deadline = True  # whether a round may end at one

    def __init__(
        self,
        timing: Timing,
        deadline: Deadline | None,
        narrow: Callable[[float], Timing] | None = None,
        learned: LearnedReach | None = None,
    ) -> None:
        self.timing, self._deadline, self._narrow = timing, deadline, narrow
        self.users, self.layers, self.learned = timing.users, timing.layers, learned

    @property
    def deadline(self) -> Deadline:
        if self._deadline is None:
            raise missing()
        return self._deadline

    def start(self) -> Memory:
        known = 0 if self.learned is None else self.learned.hypotheses
        memory = np.zeros((LEARNED + known, 1 + self.users))
        if self.has_deadline and isinstance(self.deadline, Auto):
            memory[TMAX] = deadline_for(self.timing, self.deadline.reach)
        return memory

    def clock(self, memory: Memory) -> float:
        return float(memory[CLOCK])

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        times = self.timing.round(draws, users, float(memory[CLOCK]))
        seconds = self._length(t, times, memory)
        reached = times.reached(seconds)
        arrived, after = self._closed(memory, times, reached, seconds)
        if self.learned is not None:
            first = np.where(arrived.steps > 1, 1, arrived.depth)  # of the first local step
            after[LEARNED:, 1:] = self.learned.learn(memory[LEARNED:, 1:], users, seconds, first)
        return arrived, after

    def _length(self, t: int, times: Round, memory: Memory) -> float:
        """The seconds after which the round ends at the latest."""
        return self.deadline.of(t, float(memory[TMAX]))

    def _closed(
        self,
        memory: Memory,
        times: Round,
        reached: Ints,
        seconds: float,
        **more: Any,
    ) -> Arrived:
        """Users that delivered so many milestones, and what to remember after the round."""
        took = self.timing.closes(times, seconds)
        arrived = times.tasks.arrivals(reached, spent=times.spent(reached, took), **more)
        after = memory.copy()
        after[CLOCK] = times.start + took
        after[TMAX] = self._next_deadline(memory, arrived, took, times.finish)
        return arrived, after

    def unreached(self, t: int, users: Ints, memory: Memory) -> Floats:
        """p_l: the product of the chances that each user misses the layer, if independent."""
        if self.surely:
            return np.zeros(self.layers)
        return np.asarray((1 - self.reach(t, users, memory)).prod(axis=1))

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        if self.surely:
            return np.ones((self.layers, len(users)))
        seconds = self.deadline.of(t, float(memory[TMAX]))
        if self.learned is not None:
            return self.learned.reach(memory[LEARNED:, 1:], users, seconds)
        return self.timing.reach(users, float(memory[CLOCK]), seconds)

    def waiting(self) -> World:
        return Waiting(self.timing, self._deadline)

    def late(self, delay: int | None = None) -> World:
        if delay is not None:
            raise SalfError("with a fleet, users deliver when they are done: leave out delay.")
        from salf.worlds.fleet.late import Delayed  # which is made of this class

        return Delayed(self.timing, self.deadline)

    def narrowed(self, width: float) -> World:
        assert self._narrow is not None
        return Narrowed(self.timing, self.deadline, self._narrow(width))

    def buffered(self, size: int) -> World:
        from salf.worlds.fleet.late import Buffered

        return Buffered(self.timing, size)

    def timely(self, fastest: float, measured: bool, most: int) -> World:
        from salf.worlds.fleet.timely import Timely

        return Timely(self.timing, fastest, measured, most)

    def _next_deadline(
        self, memory: Memory, arrived: Arrivals, took: float, finish: Floats
    ) -> float:
        """The deadline to keep after a round that took so long.

        A deadline that nobody needed is as good as the time that was needed. One for which nobody
        is late who will ever be done is not raised.
        """
        current = float(memory[TMAX])
        if not self.has_deadline or not isinstance(self.deadline, Auto):
            return current
        reach = arrived.mean_reach(self.layers)
        found = self.deadline.after(min(current, took) or current, reach)
        somebody = bool(((finish > took) & np.isfinite(finish)).any())
        return found if somebody else min(found, current)


class Waiting(OnFleet):
    """A round ends when the slowest user is done."""

    surely, has_deadline = True, False

    def _length(self, t: int, times: Round, memory: Memory) -> float:
        return finite(float(times.finish.max(initial=0.0)))


class Narrowed(OnFleet):
    """Users that would miss the deadline train a narrower network, all of it or nothing.

    That is HeteroFL. A device knows how fast it is in this round, so it is given the width it can
    do in time, if it can do any.
    """

    surely = True  # HeteroFL, which averages entry by entry, does not ask

    def __init__(self, timing: Timing, deadline: Deadline, narrow: Timing) -> None:
        super().__init__(timing, deadline)
        self.narrow = narrow

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        clock, seconds = float(memory[CLOCK]), self.deadline.of(t, float(memory[TMAX]))
        full = self.timing.round(draws, users, clock)
        slow = full.finish > seconds
        times = full.where(slow, self.narrow.round(draws, users, clock))
        reached = np.where(times.finish <= seconds, times.tasks.milestones, 0)
        return self._closed(memory, times, reached, seconds, straggler=slow)


def deadline_for(timing: Timing, target: float) -> float:
    """The T_max at which users reach, on average, this part of their layers (by bisection)."""
    users = evenly(np.arange(timing.users), 1000)  # a sample is enough to start with

    def enough(seconds: float) -> bool:
        reach = timing.reach_within(users, np.full(len(users), seconds))
        return bool(reach.mean() >= target)

    low, high = 0.0, 2 * float(timing.expected(users).max())
    while not enough(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def finite(end: float) -> float:
    """The time at which a step ends, or a sentence if it never does."""
    if np.isfinite(end):
        return end
    raise SalfError("a user is never available again, so the server would wait for it forever.")
