"""How long each stage of a round takes on this device, learned from earlier rounds."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean

FORWARD = 0  # stages are numbered: the forward pass, the layers 1..L, the return to the caller

WINDOW = 16  # measurements of each stage that expectations are made from
# A chance is estimated from more forward passes, since it may be small, but not from old ones: a
# user that was slow for a while, and starts seldom since, would take years to replace them.
PASSES = 32
RECENT = 64  # rounds after which a forward pass is forgotten, but for
FEWEST = 8  # the latest so many
LIKELY = 0.8  # the quantile of them that a stage is expected to take
PRECISION = 0.01  # the least relative spread of a time that is assumed
TINY = 1e-9  # seconds; a shorter time has no logarithm of use
FORGET = 0.995  # the trust in a time per round without a new one: so slow layers are run again
EAGER = 8  # every round is started if at least one in eight succeeds
SELDOM = 24  # one round in 24 is started without any chance, which is fewer than 5 %
COLD = 3  # the first rounds are slow, so this many are started whatever the chance
HEAD_START = 0.8  # of a try, so that bad first rounds are doubted soon


class StageTimes:
    """The latest times of every stage, and what to expect of the next round.

    A stage that was never run is expected to take no time: the only way to know is to run it.
    """

    def __init__(self, layers: int) -> None:
        self.last = layers  # the last layer: the first one that backpropagation completes
        self.back = layers + 1  # the return to the caller
        self.seen: list[deque[float]] = [
            deque(maxlen=PASSES if stage == FORWARD else WINDOW) for stage in range(layers + 2)
        ]
        self.absent = [0] * (layers + 2)  # rounds since each stage was last run
        self.ages: deque[int] = deque(maxlen=PASSES)  # in rounds, of the forward passes seen
        # The share of the last whole forward pass that was over when each of its modules began.
        self.course: list[float] = []

    def usual(self, stage: int) -> float:
        """The median time of a stage."""
        return FORGET ** self.absent[stage] * self._median(stage)

    def likely(self, stage: int) -> float:
        """The time in which a stage completes in most rounds."""
        ordered = self._ordered(stage)
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
        or, if that is more, what Student's t-distribution says of the logarithm of the next one.
        That is the log-normal distribution with their mean and spread, wider the fewer they are: a
        few slow passes, all that a user that starts seldom knows, say little about the next.
        """
        rest = self._median(self.last) + self._median(self.back)
        needed = [forward + rest for forward in self.seen[FORWARD]]
        if not (count := len(needed)):
            return 1.0
        logs = [math.log(max(time, TINY)) for time in needed]
        mean = fmean(logs)
        above = mean - math.log(max(deadline, TINY))
        freedom = max(1, count - 1)
        spread = max(_spread(logs, mean), TINY) * math.sqrt((count + 1) / freedom)
        share = sum(time <= deadline for time in needed) / count
        return max(share, _student(-above / spread, freedom), _normal(-above / PRECISION))

    def whole_pass(self, began: Sequence[float], seconds: float) -> float:
        """The time of a forward pass that was stopped when the last of these modules began.

        Were it taken for the time until then, all passes that are stopped would look alike, and
        barely too slow: nobody could tell a user that fits now and then from one that never does.
        """
        over = self.course[len(began) - 1] if len(began) <= len(self.course) else 1.0
        return seconds / (over or 1.0)

    def learn_course(self, began: Sequence[float], seconds: float) -> None:
        """Take in a whole forward pass: when its modules began, and the time it took."""
        self.course = [time / seconds for time in began] if seconds > 0 else []

    def scale(self, factor: float) -> None:
        """The next rounds have `factor` times the work."""
        for stage in range(self.last + 1):  # all but the return
            self.seen[stage] = deque((factor * second for second in self.seen[stage]), WINDOW)

    def learn(self, seconds: Mapping[int, float]) -> None:
        """Take in a round: the stages that were run, and the time each took."""
        known = [stage for stage in seconds if self.seen[stage]]
        before = sum(map(self._median, known))
        for stage, second in seconds.items():
            # One new time is worth more than many old ones. But where the last layer is run seldom,
            # a single slow one would keep the user from running it again.
            if self.absent[stage] >= WINDOW and stage not in (FORWARD, self.last):
                self.seen[stage].clear()
            self.seen[stage].append(second)
            self.absent[stage] = 0
        self.ages = deque((age + 1 for age in self.ages), PASSES)
        if FORWARD in seconds:
            self.ages.append(0)
        while len(self.ages) > FEWEST and self.ages[0] >= RECENT:
            self.ages.popleft()
            self.seen[FORWARD].popleft()
        after = sum(map(self._median, known))
        # Stages that were not run become slower and faster with those that were.
        drift = after / before if before > 0 else 1.0
        for stage in set(range(len(self.seen))) - seconds.keys():
            seen = self.seen[stage]
            self.seen[stage] = deque((second * drift for second in seen), seen.maxlen)
            self.absent[stage] += 1

    def _median(self, stage: int) -> float:
        ordered = self._ordered(stage)
        return ordered[(len(ordered) - 1) // 2]

    def _ordered(self, stage: int) -> list[float]:
        """The latest times of a stage, sorted; 0 if there are none."""
        return sorted(list(self.seen[stage])[-WINDOW:]) or [0.0]


class Retry:
    """When to start a round although its last layer will probably not be complete in time.

    A device that never starts cannot learn that it has become faster; one that always starts
    returns late again and again. So the share of rounds a device starts follows its chance:

        share = min(1, max(EAGER * chance, 1 / SELDOM))

    It is continuous in the chance, because devices of equal speed estimate different chances: with
    a threshold, one would always start and the other hardly ever. The shares of rounds with a low
    chance are added up; at 1, the next round is started: a try.
    """

    def __init__(self) -> None:
        self.cold = COLD  # rounds left to start whatever the chance
        self.credit = HEAD_START

    @property
    def due(self) -> bool:
        """Whether the next round is a try."""
        return self.credit >= 1

    def starts(self, chance: float) -> bool:
        """Whether to start a round with this chance of success."""
        return EAGER * chance >= 1 or self.cold > 0 or self.due

    def learn(self, chance: float, *, started: bool) -> None:
        """Take in a round that had this chance."""
        if started:
            self.cold = max(0, self.cold - 1)
            self.credit -= self.due
        if EAGER * chance < 1:
            self.credit += max(EAGER * chance, 1 / SELDOM)


def _spread(values: Sequence[float], mean: float) -> float:
    """The standard deviation, or that of the values below the mean if it is less.

    A few times that are far too long say nothing about how short times can be.
    """
    squares = [(value - mean) ** 2 for value in values]
    below = [square for square, value in zip(squares, values, strict=True) if value < mean]
    return math.sqrt(min(fmean(squares), fmean(below or [0.0])))


def _student(t: float, freedom: int) -> float:
    """The distribution function of Student's t-distribution, by Wallace's approximation.

    Not by scipy, whose import would make every start a fifth slower.
    """
    size = math.sqrt(freedom * math.log1p(t * t / freedom))
    return _normal(math.copysign(size * (8 * freedom + 1) / (8 * freedom + 3), t))


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
