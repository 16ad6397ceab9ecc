"""A preview of a fleet with a model, without training it: who reaches what, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from salf.core.arrivals import Floats, Ints, evenly
from salf.core.draws import Keyed
from salf.core.inputs import as_one, takes_several
from salf.core.layers import Layers
from salf.worlds.fleet import deadlines
from salf.worlds.fleet.availability import DAY
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import deadline_for

ROUNDS = 200  # that are drawn
FEWEST, ENTRIES = 5, 400_000  # rounds that are drawn at least; users in all rounds, if that allows
COHORTS = 50  # whose p_l is averaged
POINTS = 40  # of the curve over deadlines, evenly spaced
QUANTILES = np.linspace(0.05, 0.95, 19)  # of the users' times, which are points of it too
MOST_USERS = 2_000  # of a larger fleet, so many are looked at
STARTS = 24  # times of a week at which rounds begin, where devices are not always available
FINISH = (0.25, 0.5, 0.75, 0.9)  # parts of the users whose deadline is said


@dataclass(frozen=True, eq=False)
class Preview:
    """Who reaches what by a deadline, and how long rounds take."""

    fleet: str
    users: int  # of the fleet; those below may be a part of them
    asked: int  # of the users, in every round
    layers: tuple[str, ...]
    deadline: float
    expected: Floats  # seconds in which each user is done, without jitter
    reach: Floats  # [L, users], P(user u reaches layer l by the deadline)
    unreached: Floats  # p_l: the chance that no user of a round's cohort reaches layer l
    waiting: Floats  # seconds of drawn rounds that wait for the slowest user asked
    deadlines: Floats  # to choose from
    reach_at: Floats  # [deadlines, L]: the mean reach of each layer

    def deadline_to_finish(self, part: float) -> float | None:
        """The deadline by which this part of the users finishes; None if it is after the curve."""
        finish = self.reach_at[:, 0]
        if part > finish[-1]:
            return None
        return float(np.interp(part, [0.0, *finish], [0.0, *self.deadlines]))

    @property
    def depths(self) -> Floats:
        """The chances of the depths 1..L+1, of a user taken at random."""
        return np.diff(np.concatenate([[0.0], self.reach.mean(axis=1), [1.0]]))

    def __str__(self) -> str:
        slow, usual, fast = (_plain(each) for each in np.percentile(self.expected, [95, 50, 5]))
        cohort = "" if self.asked == self.users else f" ({self.asked} in every round)"
        lines = [
            f"{self.fleet}: {self.users} users{cohort}, done after {usual} s at the median, "
            f"{fast} to {slow} s from the 5th to the 95th percentile.",
            f"A round that waits for all users takes {_plain(self.waiting.mean())} s on average "
            f"and {_plain(np.percentile(self.waiting, 95))} s at the 95th percentile.",
            f"By a deadline of {_plain(self.deadline)} s, a user finishes with probability "
            f"{self.reach[0].mean():.2f} and completes no layer with probability "
            f"{self.depths[-1]:.2f}.",
            "Users that reach each layer, and the probability p_l that nobody does:",
        ]
        each_layer = zip(self.layers, self.reach.mean(axis=1), self.unreached, strict=True)
        lines += [
            f"  {index} {name}: {self.asked * chance:.1f} ({chance:.0%}), p = {nobody:.2g}"
            for index, (name, chance, nobody) in enumerate(each_layer, 1)
        ]
        chosen = [
            f"{part:.0%} after {_plain(self.deadlines[-1])} s"
            if (seconds := self.deadline_to_finish(part)) is None
            else f"{part:.0%} by {_plain(seconds)} s"
            for part in FINISH
        ]
        return "\n".join([*lines, f"Users that finish, by deadline: {', '.join(chosen)}."])


def _plain(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 99.5 else f"{seconds:.3g}"


def preview(
    fleet: str,
    timing: Timing,
    layers: tuple[str, ...],
    deadline: float | str | None = None,
    cohorts: Callable[[int], Ints] | None = None,
) -> Preview:
    """The preview of users with these times; by default of the deadline `auto` starts with.

    Of a schedule, it is that of its first deadline. `cohorts` are the users asked in each round, by
    default all.
    """
    users = evenly(np.arange(timing.users), MOST_USERS)
    found = deadlines.Auto() if deadline is None else deadlines.parse(deadline)
    seconds = found.of(1, 0.0)  # which `auto` has not found yet
    if isinstance(found, deadlines.Auto):
        seconds = deadline_for(timing, found.reach)
    available, always = timing.devices.availability, timing.devices.availability.always
    # As close together as is enough for devices to be independent of what they did before.
    length = min(7 * DAY, STARTS * available.memory)
    starts = np.zeros(1) if always else np.linspace(0, length, STARTS, endpoint=False)
    asked = cohorts or (lambda t: np.arange(timing.users))
    size = len(asked(1))
    rounds = max(FEWEST, min(ROUNDS, ENTRIES // size)) if always else STARTS
    slowest = [
        float(timing.round(Keyed(0, t), asked(t), start).finish.max())
        for t, start in enumerate(np.resize(starts, rounds), 1)
    ]
    expected = timing.expected(users)
    nominal = float(expected.max())
    last = max(float(np.percentile(slowest, 95)) if always else 1.5 * nominal, nominal, seconds)
    # Closer where most users finish: the slowest of very many is far away.
    usual = np.quantile(expected[np.isfinite(expected)], QUANTILES)
    offered = np.union1d(np.linspace(0, last, POINTS + 1)[1:], usual)
    reach = np.zeros((len(offered) + 1, timing.layers, len(users)))
    for start in starts.tolist():
        reach += timing.reach(users, start, np.append(offered, seconds)) / len(starts)
    drawn = len(starts) if cohorts is None else max(len(starts), COHORTS)
    unreached = [
        _unreached(timing, asked(t), start, seconds)
        for t, start in enumerate(np.resize(starts, drawn).tolist(), 1)
    ]
    of = fleet, timing.users, size, layers, seconds, expected, reach[-1]
    nobody, waiting = np.mean(unreached, axis=0), np.array(slowest)
    return Preview(*of, nobody, waiting, offered, reach[:-1].mean(axis=2))


def _unreached(timing: Timing, asked: Ints, start: float, seconds: float) -> Floats:
    """p_l if these users are asked; of very many, each that is looked at stands for several."""
    some = evenly(asked, MOST_USERS)
    missed = 1 - timing.reach(some, start, seconds)
    return np.asarray(missed.prod(axis=1) ** (len(asked) / len(some)))


def of_model(
    fleet: Fleet,
    model: nn.Module,
    deadline: float | str | None = None,
    *,
    example: Any,
    layers: Any = None,
    batch_size: int = 16,
    local_steps: int = 1,
) -> Preview:
    """A model on a fleet; `example` is a batch of inputs, to count the layers' work on."""
    example = as_one(example)
    takes_several(model, example)
    seen_as = Layers.of(model, layers, example)
    timing = Timing(
        fleet,
        Cost.of(model, seen_as, example),
        lambda users: np.full(len(users), batch_size),
        lambda users: np.full(len(users), local_steps),
    )
    return preview(fleet.name, timing, tuple(layer.name for layer in seen_as), deadline)
