"""The law of a fleet: who reaches what by a deadline, how long rounds take, and on what."""

from functools import cached_property

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed
from salf.worlds.fleet.round import Round
from salf.worlds.fleet.timing import Timing

MOST_USERS = 500  # of a larger cohort, so many are looked at, evenly spaced in speed
DRAWN = 32  # rounds that are drawn to know how long they take
STARTS = 8  # times of the budget at which devices that come and go are looked at


class FleetLaw:
    """How many users reach each layer by a deadline, and how long rounds take, on a fleet."""

    def __init__(self, timing: Timing, cohort: int, budget: float) -> None:
        self.timing, self.budget = timing, budget
        order = np.argsort(timing.expected(np.arange(timing.users)), kind="stable")
        # A cohort is like as many users evenly spaced in speed.
        count = min(cohort, MOST_USERS)
        places = ((np.arange(count) + 0.5) * timing.users / count).astype(np.int64)
        self.users: Ints = np.sort(order[places])
        always = timing.devices.availability.always
        self._starts = [0.0] if always else np.linspace(0, budget, STARTS, endpoint=False).tolist()

    def unreached(self, deadline: float) -> Floats:
        """p_l, the chance that no user reaches layer l: [L]."""
        reach = np.array([self.timing.reach(self.users, at, deadline) for at in self._starts])
        return np.asarray((1 - reach).prod(axis=2).mean(axis=0))

    def deadline_for(self, share: float) -> float:
        """The deadline by which this share of the users is done, at most the budget."""
        ends = np.concatenate([times.finish for times in self._rounds])
        return float(f"{np.quantile(np.minimum(ends, self.budget), share):.3g}")

    def seconds(self, deadline: float | None) -> float:
        """How long a round takes; without a deadline, until all users are done."""
        ends = [
            times.finish.max() if deadline is None else self.timing.closes(times, deadline)
            for times in self._rounds
        ]
        return float(np.mean(ends))

    @cached_property
    def _rounds(self) -> list[Round]:
        starts = self._starts * -(-DRAWN // len(self._starts))
        return [self.timing.round(Keyed(0, t), self.users, at) for t, at in enumerate(starts, 1)]

    def quantile(self, part: float) -> float:
        """The seconds in which this part of the users is done, without jitter or absence."""
        return float(np.quantile(self.timing.expected(self.users), part))

    def shares(self) -> dict[str, float]:
        """What the median user's round is spent on: links, fixed costs of its steps, and rows."""
        return self.timing.shares(self.users)

    def available(self) -> float:
        """The share of the time that users are available."""
        own = self.timing.devices.availability.active(self.users, 0.0, self.budget)
        return float(np.mean(own) / self.budget)
