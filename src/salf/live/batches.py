"""Batches in equal time: every user chooses its batch such that a step takes all about as long.

The server sends a time for a step: what a batch of the usual size takes the median user, and no
more than fits into a constant deadline. A user divides it by the time that it takes for a row.
"""

from collections.abc import Mapping
from statistics import median

from salf.core.deadline import Backpropagation
from salf.core.deadline.times import FORWARD
from salf.worlds.fleet.cost import MOST

STEADY = 1.1  # a batch is not changed by less than this factor, so that its time can be learned
FITS = 0.9  # of the deadline: times vary from round to round
ALMOST = 0.1  # of a row: what a batch may be larger than the time allows
BACKWARD = 2.0  # forward passes that the backward pass takes, as long as that is unknown


class OwnBatch:
    """The batch size of one user, from what it learned about its own speed."""

    def __init__(self, size: int, samples: int) -> None:
        self.rows = min(size, samples)
        self._most = min(MOST * size, samples)

    def fit(self, seconds: float, backpropagation: Backpropagation) -> None:
        """Choose the rows of the next batches: as many as take so many seconds."""
        pace = self.pace(backpropagation)
        if not seconds > 0 or not pace > 0:
            return
        rows = min(max(int(seconds / pace + ALMOST), 1), self._most)
        if max(rows, self.rows) >= STEADY * min(rows, self.rows):
            backpropagation.times.scale(rows / self.rows)
            self.rows = rows

    def pace(self, backpropagation: Backpropagation) -> float:
        """The seconds of a row, forward and backward; 0 before anything is known."""
        times = backpropagation.times
        forward = times.usual(FORWARD)
        stages = range(1, times.last + 1)
        backward = sum(times.usual(stage) for stage in stages)
        if not all(times.seen[stage] for stage in stages):  # those take time too
            backward = max(backward, BACKWARD * forward)
        return (forward + backward) / self.rows


def common_time(
    paces: Mapping[str, float], size: int, deadline: float | None, steps: int = 1
) -> float:
    """The seconds for a step of every user, from the seconds of a row of each; 0 if unknown."""
    known = [pace for pace in paces.values() if pace > 0]
    if not known:
        return 0.0
    usual = size * median(known)
    return usual if deadline is None else min(usual, FITS * deadline / steps)
