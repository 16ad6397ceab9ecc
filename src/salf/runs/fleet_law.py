"""The law of a fleet: how many users reach each layer by a deadline, and how long rounds take."""

from functools import lru_cache

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed
from salf.theory.planning import count_law
from salf.worlds.fleet.cost import equal_time
from salf.worlds.fleet.round import Round
from salf.worlds.fleet.timing import Timing

MOST_USERS = 500  # of a larger cohort, so many are looked at, evenly spaced in speed
DRAWN = 64  # rounds that are drawn to know how long they take
STARTS = 8  # times of the budget at which devices that come and go are looked at


class FleetLaw:
    """How many users reach each layer by a deadline, and how long rounds take, on a fleet.

    With `fits`, batches of up to so many rows fit the deadline (`--batches equal-time`).
    """

    def __init__(self, timing: Timing, cohort: int, budget: float, fits: int = 0) -> None:
        self.timing, self.fits = timing, fits
        order = np.argsort(timing.expected(np.arange(timing.users)), kind="stable")
        count = min(cohort, MOST_USERS)
        # A cohort is like as many users evenly spaced in speed.
        places = ((np.arange(count) + 0.5) * timing.users / count).astype(np.int64)
        self.users: Ints = np.sort(order[places])
        always = timing.devices.availability.always
        self._starts = [0.0] if always else np.linspace(0, budget, STARTS, endpoint=False).tolist()
        self.at = lru_cache(maxsize=None)(self._at)
        self.seconds = lru_cache(maxsize=None)(self._seconds)
        self._of_rows: dict[bytes, Timing] = {}
        self._rounds = lru_cache(maxsize=4)(self._drawn)  # deadlines are looked at in order

    def _at(self, deadline: float) -> tuple[Floats, float]:
        """The law of |U^l|, [L, U+1], and the mean reach."""
        timing = self._timing(deadline)
        reach = [timing.reach(self.users, start, deadline) for start in self._starts]
        law = np.mean([count_law(chances) for chances in reach], axis=0)
        return np.asarray(law), float(np.mean(reach))

    def rows(self, deadline: float) -> Ints:
        """How many rows the users' batches have."""
        return np.rint(self._timing(deadline).rows(self.users)).astype(np.int64)

    def _seconds(self, deadline: float) -> float:
        """How long a round takes: until the deadline, or until all users are done."""
        timing = self._timing(deadline)
        return float(np.mean([timing.closes(times, deadline) for times in self._rounds(timing)]))

    def _drawn(self, timing: Timing) -> list[Round]:
        starts = self._starts * -(-DRAWN // len(self._starts))
        return [timing.round(Keyed(0, t), self.users, at) for t, at in enumerate(starts, 1)]

    def _timing(self, deadline: float) -> Timing:
        """With the batches that fit the deadline."""
        timing = self.timing
        if not self.fits:
            return timing
        steps = int(timing.planned(self.users[:1])[0])
        fit = equal_time(timing.devices, timing.cost, self.fits, steps, deadline)
        # Those of the longest deadline are as large as the users' data allow.
        rows = np.minimum(fit, timing.rows(np.arange(timing.users)))
        made = Timing(timing.devices, timing.cost, lambda users: rows[users], timing.planned)
        return self._of_rows.setdefault(rows.tobytes(), made)
