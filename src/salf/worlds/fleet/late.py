"""Users who go on after a step is taken, and deliver when they are done.

A step is taken at a deadline (`Delayed`), or when so many updates have arrived (`Buffered`), with
ties settled by the users' numbers.
"""

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Ints, Spent
from salf.core.draws import Draws, Purpose
from salf.worlds.base import DUE, GIVEN, Arrived, Memory
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import CLOCK, TMAX, OnFleet, finite


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
        clock, seconds = float(memory[CLOCK]), self.deadline.of(t, float(memory[TMAX]))
        begun, after = self._begin(t, draws, users, memory)
        at_work, due = self.busy(t, after), after[DUE, 1:]
        last = float(due[at_work].max()) if len(at_work) else np.inf
        end = min(last, clock + seconds)
        return self._step(t, begun, after, at_work[due[at_work] <= end], end, len(users))

    def _begin(self, t: int, draws: Draws, users: Ints, memory: Memory) -> tuple[Ints, Memory]:
        """Users that are free begin on the model of round t."""
        clock, after = float(memory[CLOCK]), memory.copy()
        idle = users[memory[DUE, 1 + users] == 0]
        times = self.timing.round(draws, idle, clock)
        after[GIVEN, 1 + idle] = t
        after[DUE, 1 + idle] = clock + times.finish
        return idle, after

    def _step(
        self, t: int, begun: Ints, after: Memory, delivers: Ints, end: float, asked: int
    ) -> Arrived:
        """The step at time `end`, at which these users have delivered."""
        clock, entries = float(after[CLOCK]), np.union1d(delivers, begun)
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

    A user that has delivered begins again, on the new model, when the step is taken. With a cohort
    as many users are at work at a time; who is next is drawn from those that are free.
    """

    has_deadline = False

    def __init__(self, timing: Timing, size: int) -> None:
        super().__init__(timing, None)
        if not size >= 1:
            raise SalfError(f"a buffer must hold at least one update, not {size}.")
        self.size = size

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        if self.size > len(users):
            raise SalfError(
                f"a buffer of {self.size} updates never fills, because only {len(users)} users "
                "work at a time: use a smaller one, as in options={'buffer': 5}."
            )
        at_work = self.busy(t, memory)
        free = np.setdiff1d(users, at_work)
        places = max(0, len(users) - len(at_work))
        if len(free) > places:
            order = np.argsort(draws.uniform(free, Purpose.SLOT)[:, 0], kind="stable")
            free = np.sort(free[order[:places]])
        begun, after = self._begin(t, draws, free, memory)
        at_work = self.busy(t, after)
        due = after[DUE, 1 + at_work]
        first = at_work[np.lexsort((at_work, due))][: self.size]
        end = finite(float(after[DUE, 1 + first].max(initial=0.0)))
        return self._step(t, begun, after, first, end, len(users))
