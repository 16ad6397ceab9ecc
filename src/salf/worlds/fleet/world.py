"""Rounds by a simulated clock: who arrives, how far, and how long it takes.

A world is a rule by which a round ends: at its deadline or when all users are done (`OnFleet`,
`Narrowed`), with the slowest (`Waiting`), at its deadline with the others delivering later
(`Delayed`), after K updates (`Buffered`), or with the k-th fastest user (`Timely`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Floats, Ints, Spent, evenly
from salf.core.draws import Draws, Purpose
from salf.worlds.base import DUE, GIVEN, Arrived, Memory, World
from salf.worlds.fleet.deadlines import Auto, Deadline, missing
from salf.worlds.fleet.jitter import ROUNDING
from salf.worlds.fleet.timing import Round, Timing

# What is remembered, [2, 1 + users]: first the clock and the deadline of the next round; then, of
# every user at work on an update, the round it was given its model and when it will deliver.
CLOCK, TMAX = (0, 0), (1, 0)
LEAST = 1e-12  # seconds that work takes at least


class OnFleet(World):
    """A fleet with a deadline: a round ends at T_max, or earlier if all users are done."""

    counts_steps = True
    surely = False  # whether every layer is reached for sure, sooner or later, or nobody asks

    def __init__(
        self,
        timing: Timing,
        deadline: Deadline | None,
        narrow: Callable[[float], Timing] | None = None,
    ) -> None:
        self.timing, self.deadline, self._narrow = timing, deadline, narrow
        self.users, self.layers = timing.users, timing.layers

    def start(self) -> Memory:
        memory = np.zeros((2, 1 + self.users))
        if isinstance(self.deadline, Auto):
            memory[TMAX] = deadline_for(self.timing, self.deadline.reach)
        return memory

    def clock(self, memory: Memory) -> float:
        return float(memory[CLOCK])

    def seconds(self, t: int, memory: Memory) -> float:
        """T_max of round t."""
        if self.deadline is None:
            raise missing()
        return self.deadline.of(t, float(memory[TMAX]))

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        seconds = self.seconds(t, memory)
        times = self.timing.round(draws, users, self.clock(memory))
        return self._closed(memory, times, times.reached(seconds), seconds)

    def _closed(
        self, memory: Memory, times: Round, reached: Ints, seconds: float, **more: Any
    ) -> Arrived:
        """Users that delivered so many milestones, and what to remember after the round."""
        took = finite(times.closes(seconds))
        arrived = times.tasks.arrivals(reached, spent=times.spent(reached, took), **more)
        after = memory.copy()
        after[CLOCK] = times.start + took
        after[TMAX] = self._next_deadline(memory, arrived, took, times.finish)
        return arrived, after

    def _next_deadline(
        self, memory: Memory, arrived: Arrivals, took: float, finish: Floats
    ) -> float:
        """The deadline to keep after a round that took so long.

        A deadline that nobody needed is as good as the time that was needed. One for which nobody
        is late who will ever be done is not raised.
        """
        current = float(memory[TMAX])
        if not isinstance(self.deadline, Auto):
            return current
        found = self.deadline.after(min(current, took) or current, arrived.mean_reach(self.layers))
        somebody = bool(((finish > took) & np.isfinite(finish)).any())
        return found if somebody else min(found, current)

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        if self.surely:
            return np.ones((self.layers, len(users)))
        return self.timing.reach(users, self.clock(memory), self.seconds(t, memory))

    def waiting(self) -> World:
        return Waiting(self.timing, None)

    def late(self, delay: int | None = None) -> World:
        if delay is not None:
            raise SalfError("with a fleet, users deliver when they are done: leave out delay.")
        return Delayed(self.timing, self.deadline)

    def narrowed(self, width: float) -> World:
        assert self._narrow is not None
        return Narrowed(self.timing, self.deadline, self._narrow(width))

    def buffered(self, size: int) -> World:
        return Buffered(self.timing, size)

    def timely(self, fastest: float, most: int) -> World:
        return Timely(self.timing, fastest, most)


class Waiting(OnFleet):
    """A round ends when the slowest user is done."""

    surely = True

    def seconds(self, t: int, memory: Memory) -> float:
        return np.inf


class Narrowed(OnFleet):
    """Users that would miss the deadline train a narrower network, all of it or nothing.

    That is HeteroFL. A device knows how fast it is in this round, so it is given the width it can
    do in time, if it can do any.
    """

    surely = True  # HeteroFL, which averages entry by entry, does not ask

    def __init__(self, timing: Timing, deadline: Deadline | None, narrow: Timing) -> None:
        super().__init__(timing, deadline)
        self.narrow = narrow

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        clock, seconds = self.clock(memory), self.seconds(t, memory)
        full = self.timing.round(draws, users, clock)
        slow = full.finish > seconds
        times = full.where(slow, self.narrow.round(draws, users, clock))
        reached = np.where(times.finish <= seconds, times.tasks.milestones, 0)
        return self._closed(memory, times, reached, seconds, straggler=slow)


class Delayed(OnFleet):
    """Rounds with a deadline, at which users that are not done go on, and deliver when they are."""

    surely = True  # everybody delivers in the end

    def busy(self, t: int, memory: Memory) -> Ints:
        return np.flatnonzero(memory[DUE, 1:] > 0)

    def models_in_use(self, memory: Memory) -> set[int]:
        given, due = memory[:, 1:]
        # Not of those that never come back, whose number would only grow.
        return set(given[(due > 0) & np.isfinite(due)].astype(np.int64).tolist())

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        begun, after = self._begin(t, draws, users, memory)
        at_work, due = self.busy(t, after), after[DUE, 1:]
        last = float(due[at_work].max()) if len(at_work) else np.inf
        end = min(last, self.clock(memory) + self.seconds(t, memory))
        return self._step(t, begun, after, at_work[due[at_work] <= end], end, len(users))

    def _begin(self, t: int, draws: Draws, users: Ints, memory: Memory) -> tuple[Ints, Memory]:
        """Users that are free begin on the model of round t."""
        clock, after = self.clock(memory), memory.copy()
        idle = users[memory[DUE, 1 + users] == 0]
        after[GIVEN, 1 + idle] = t
        after[DUE, 1 + idle] = clock + self.timing.round(draws, idle, clock).finish
        return idle, after

    def _step(
        self, t: int, begun: Ints, after: Memory, delivers: Ints, end: float, asked: int
    ) -> Arrived:
        """The step at time `end`, at which these users have delivered."""
        clock, entries = self.clock(after), np.union1d(delivers, begun)
        there = np.isin(entries, delivers)
        age = np.where(there, t - after[GIVEN, 1 + entries].astype(np.int64), 0)
        tasks, due = self.timing.tasks(entries), after[DUE, 1 + entries]
        work = np.where(there, tasks.work.sum(axis=1), 0.0)
        bytes_ = np.where(there, self.timing.model_bytes + self.timing.update_bytes, 0.0)
        waited = np.where(there, end - due, 0.0)
        arrived = tasks.arrivals(
            np.where(there, tasks.milestones, 0),
            straggler=~there | (age > 0),
            asked=asked,
            age=age,
            spent=Spent(end - clock, end, waited, work, work, bytes_),
        )
        at_work = after[DUE, 1:][after[DUE, 1:] > 0]
        after[TMAX] = self._next_deadline(after, arrived, end - clock, at_work - clock)
        after[:, 1 + delivers] = 0
        after[CLOCK] = end
        return arrived, after


class Buffered(Delayed):
    """No rounds: the server takes a step whenever `size` updates have arrived, in order of time.

    Ties are settled by the users' numbers. A user that has delivered begins again, on the new
    model, when the step is taken. With a cohort as many users are at work at a time; who is next
    is drawn from those that are free.
    """

    def __init__(self, timing: Timing, size: int) -> None:
        super().__init__(timing, None)
        self.size = size

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        if self.size > len(users):
            raise SalfError(
                f"a buffer of {self.size} updates never fills, because only {len(users)} users "
                "work at a time: use a smaller one, as in options={'buffer': 5}."
            )
        at_work = self.busy(t, memory)
        free = np.setdiff1d(users, at_work)
        order = np.argsort(draws.uniform(free, Purpose.SLOT)[:, 0], kind="stable")
        places = max(0, len(users) - len(at_work))
        begun, after = self._begin(t, draws, np.sort(free[order[:places]]), memory)
        at_work = self.busy(t, after)
        first = at_work[np.lexsort((at_work, after[DUE, 1 + at_work]))][: self.size]
        end = finite(float(after[DUE, 1 + first].max()))
        return self._step(t, begun, after, first, end, len(users))


class Timely(OnFleet):
    """A round lasts as long as the `fastest` part of its users need; all are given what fits.

    Users that can do the planned local steps several times in that time do, at most `most` times;
    the others do the steps, and of the last one the layers, that fit. Devices know before the round
    how fast they are in it, so what a user was given arrives in time.
    """

    surely = True  # nobody asks for p_l

    def __init__(self, timing: Timing, fastest: float, most: int) -> None:
        super().__init__(timing, None)
        self.fastest, self.most = fastest, most

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        times, given, seconds = self._given(draws, users, self.clock(memory))
        done = times.done[times.tasks.each, np.maximum(given - 1, 0)]
        took = min(float(done[given > 0].max()), seconds)
        after = memory.copy()
        after[CLOCK] += took
        return times.tasks.arrivals(given, spent=times.spent(given, took)), after

    def _given(self, draws: Draws, users: Ints, clock: float) -> tuple[Round, Ints, float]:
        """The users' times, how many milestones each is given, and the length of the round."""
        once = self.timing.round(draws, users, clock)
        tasks, links = once.tasks, once.tasks.finish(once.tasks.links)
        # The time in which so many of the users are done.
        wanted = max(1, int(np.ceil(self.fastest * len(users) * (1 - ROUNDING))))
        known = np.sort(once.finish[np.isfinite(once.finish)])[:wanted]
        seconds = finite(float(known[-1]) if len(known) else np.inf)
        in_time = seconds * (1 + ROUNDING)
        fit = np.floor((in_time - links) / np.maximum(once.finish - links, LEAST))
        # Where the others are away for hours, millions of steps would fit.
        epochs = np.clip(fit, 1, self.most).astype(np.int64)
        times = self.timing.round(draws, users, clock, epochs)
        # The next steps may take longer than the first.
        fit = np.minimum(epochs, times.reached(in_time) // tasks.milestones)
        epochs = np.maximum(fit, 1)
        given = np.where(fit >= 1, epochs * tasks.milestones, once.reached(in_time))
        within = np.arange(times.tasks.work.shape[1]) < given[:, None]
        work = np.where(within, times.tasks.work, 0.0)
        only = replace(times.tasks, planned=tasks.planned * epochs, work=work)
        return replace(times, tasks=only), given, seconds


def deadline_for(timing: Timing, target: float) -> float:
    """The T_max at which users reach, on average, this part of their layers (by bisection)."""
    users = evenly(np.arange(timing.users), 1000)  # a sample is enough to start with

    def enough(seconds: float) -> bool:
        return bool(timing.reach_within(users, np.full(len(users), seconds)).mean() >= target)

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
