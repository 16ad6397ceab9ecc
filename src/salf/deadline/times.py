"""How long each stage of a round takes on this device, learned from earlier rounds."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, pstdev

FORWARD = 0  # stages are numbered: the forward pass, the layers 1..L, the return to the caller

WINDOW = 16  # measurements kept of each stage
LIKELY = 0.8  # the quantile of them that a stage is expected to take
PRECISION = 0.02  # the least relative spread of a time that is assumed
TINY = 1e-9  # seconds; a shorter time has no logarithm of use
FORGET = 0.995  # the trust in a time per round without a new one: so slow layers are run again


class Times:
    """The latest times of every stage, and what to expect of the next round.

    A stage that was never run is expected to take no time: the only way to know is to run it.
    """

    def __init__(self, layers: int) -> None:
        self.last = layers  # the last layer: the first one that backpropagation completes
        self.back = layers + 1  # the return to the caller
        self.seen: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(layers + 2)]
        self.absent = [0] * (layers + 2)  # rounds since each stage was last run

    def usual(self, stage: int) -> float:
        """The median time of a stage."""
        return FORGET ** self.absent[stage] * self._median(stage)

    def likely(self, stage: int) -> float:
        """The time in which a stage completes in most rounds."""
        ordered = sorted(self.seen[stage]) or [0.0]
        return FORGET ** self.absent[stage] * ordered[int(LIKELY * len(ordered))]

    def expected(self, stage: int, pace: float) -> float:
        """The time to allow for a stage in a round that is `pace` times as slow as usual."""
        return max(self.likely(stage), pace * self.usual(stage))

    def first_layer(self) -> float:
        """The time in which most rounds complete the first layer they can, the last one."""
        return self.likely(FORWARD) + self.likely(self.last) + self.likely(self.back)

    def chance(self, deadline: float) -> float:
        """The probability that a round completes the last layer in time; 1 before the first round.

        From the latest forward passes, each with a median last layer: the share of them that fit,
        or, if that is more, what a log-normal distribution with their mean and spread says. The
        latter tells a user that fits now and then from one that never does before any round fits.
        """
        rest = self._median(self.last) + self._median(self.back)
        needed = [forward + rest for forward in self.seen[FORWARD]]
        if not needed:
            return 1.0
        logs = [math.log(max(time, TINY)) for time in needed]
        above = fmean(logs) - math.log(max(deadline, TINY))
        spread = max(pstdev(logs), PRECISION)
        share = sum(time <= deadline for time in needed) / len(needed)
        return max(share, math.erfc(above / spread / math.sqrt(2)) / 2)

    def scale(self, factor: float) -> None:
        """The next rounds have `factor` times the work."""
        for stage in range(self.last + 1):  # all but the return
            self.seen[stage] = deque((factor * second for second in self.seen[stage]), WINDOW)

    def learn(self, seconds: Mapping[int, float]) -> None:
        """Take in a round: the stages that were run, and the time each took."""
        known = [stage for stage in seconds if self.seen[stage]]
        before = sum(map(self._median, known))
        for stage, second in seconds.items():
            # One new time is worth more than many old ones; but `chance` needs the spread of the
            # forward passes, also if tries are rare.
            if self.absent[stage] >= WINDOW and stage != FORWARD:
                self.seen[stage].clear()
            self.seen[stage].append(second)
            self.absent[stage] = 0
        after = sum(map(self._median, known))
        # Stages that were not run become slower and faster with those that were.
        drift = after / before if before > 0 else 1.0
        for stage in set(range(len(self.seen))) - seconds.keys():
            self.seen[stage] = deque((second * drift for second in self.seen[stage]), WINDOW)
            self.absent[stage] += 1

    def _median(self, stage: int) -> float:
        ordered = sorted(self.seen[stage]) or [0.0]
        return ordered[(len(ordered) - 1) // 2]
