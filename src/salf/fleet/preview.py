"""What a fleet would do with a model, without training it: who reaches what, and when."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from salf.arrivals import Floats, Ints
from salf.draws import Keyed
from salf.errors import SalfError
from salf.fleet.availability import DAY
from salf.fleet.deadlines import REACH
from salf.fleet.devices import Fleet
from salf.fleet.timing import Cost, Timing, equal_time
from salf.fleet.world import deadline_for
from salf.layers import Layers

ROUNDS = 200  # that are drawn
POINTS = 40  # of the curve over deadlines
MOST_USERS = 2_000  # of a larger fleet, so many are looked at
LANES = 30  # users whose round is shown
STARTS = 24  # times of a week at which rounds begin, where devices are not always available
WEEK = 7 * DAY
FINISH = (0.25, 0.5, 0.75, 0.9)  # shares of users whose deadline is said


@dataclass(frozen=True)
class Span:
    """What a user does in a round from one time to another."""

    user: int  # counted from the fastest, from 1
    what: str  # DOWNLOAD, UPLOAD, LATE, or the number of a layer, from 1
    start: float
    end: float


DOWNLOAD, UPLOAD, LATE = "download", "upload", "too late"


@dataclass(frozen=True, eq=False)
class Preview:
    """Who reaches what by a deadline, and how long rounds take."""

    fleet: str
    users: int  # of the fleet; those below may be a part of them
    layers: tuple[str, ...]
    deadline: float
    expected: Floats  # seconds in which each user is done, without jitter
    reach: Floats  # [L, users], P(user u reaches layer l by the deadline)
    waiting: Floats  # seconds of drawn rounds that wait for the slowest of all users
    deadlines: Floats  # to choose from
    reach_at: Floats  # [deadlines, L]: the mean reach of each layer
    finish_at: Floats  # the mean chance of a user to finish
    one_round: tuple[Span, ...] = ()  # of some users; none where devices are not always available

    def deadline_to_finish(self, share: float) -> float:
        """The deadline by which this share of the users finishes, between those of the curve."""
        return float(np.interp(share, [0.0, *self.finish_at], [0.0, *self.deadlines]))

    @property
    def unreached(self) -> Floats:
        """p_l, for l = 1..L."""
        return np.asarray((1 - self.reach).prod(axis=1))

    @property
    def depths(self) -> Floats:
        """The chances of the depths 1..L+1, of a user taken at random."""
        mean = self.reach.mean(axis=1)
        return np.diff(np.concatenate([[0.0], mean, [1.0]]))

    def __str__(self) -> str:
        slow, usual, fast = np.percentile(self.expected, [95, 50, 5])
        lines = [
            f"{self.fleet}: {self.users} users, done after {usual:.3g} s at the median, "
            f"{fast:.3g} to {slow:.3g} s from the 5th to the 95th percentile.",
            f"Waiting for all users, a round takes {self.waiting.mean():.3g} s on average and "
            f"{np.percentile(self.waiting, 95):.3g} s at the 95th percentile.",
            f"By a deadline of {self.deadline:.3g} s a user finishes with chance "
            f"{self.reach[0].mean():.2f} and has nothing with chance {self.depths[-1]:.2f}.",
            "Layer: users that reach it, and p_l, the chance that nobody does:",
        ]
        lines += [
            f"  {index} {name}: {self.users * chance:.1f} ({chance:.0%}), p = {nobody:.2g}"
            for index, (name, chance, nobody) in enumerate(
                zip(self.layers, self.reach.mean(axis=1), self.unreached, strict=True), 1
            )
        ]
        chosen = [f"{share:.0%} by {self.deadline_to_finish(share):.3g} s" for share in FINISH]
        return "\n".join([*lines, f"Users that finish, by deadline: {', '.join(chosen)}."])


def preview(fleet: str, timing: Timing, layers: tuple[str, ...], deadline: float | None) -> Preview:
    """The preview of users with these times; by default of the deadline `auto` starts with."""
    users = np.arange(timing.users)
    if len(users) > MOST_USERS:
        users = np.unique(np.linspace(0, timing.users - 1, MOST_USERS).astype(np.int64))
    seconds = deadline_for(timing, REACH) if deadline is None else deadline
    if not 0 < seconds < np.inf:
        raise SalfError(f"the deadline must be a positive time in seconds, not {seconds}.")
    expected = timing.expected(users)
    always = timing.devices.availability.always
    starts = np.zeros(1) if always else np.linspace(0, WEEK, STARTS, endpoint=False)

    def reach(seconds: float) -> Floats:
        """At a time of the week taken at random."""
        if always:
            return timing.reach_always(users, seconds)
        each = [timing.reach(users, start, seconds) for start in starts.tolist()]
        return np.asarray(np.mean(each, axis=0))

    slowest = [
        float(timing.round(Keyed(0, t), users, start).finish.max())
        for t, start in enumerate(np.resize(starts, ROUNDS if always else STARTS), 1)
    ]
    nominal = float(1.5 * expected.max())
    last = max(float(np.percentile(slowest, 95)) if always else nominal, seconds)
    deadlines = np.linspace(0, last, POINTS + 1)[1:]
    at = np.array([reach(each).mean(axis=1) for each in deadlines])
    return Preview(
        fleet,
        timing.users,
        layers,
        seconds,
        expected,
        reach(seconds),
        np.array(slowest),
        deadlines,
        at,
        at[:, 0],
        _one_round(timing, users[np.argsort(expected, kind="stable")], seconds) if always else (),
    )


def _one_round(timing: Timing, users: Ints, deadline: float) -> tuple[Span, ...]:
    """What some users, from the fastest to the slowest, do in round 1 until the deadline."""
    some = users[np.unique(np.linspace(0, len(users) - 1, LANES).astype(np.int64))]
    times, spans = timing.round(Keyed(0, 1), np.sort(some), 0.0), []
    counts = times.reached(deadline).tolist()
    for number, row in enumerate(np.searchsorted(np.sort(some), some).tolist(), 1):
        count, began = counts[row], float(times.tasks.download[row])
        spans.append(Span(number, DOWNLOAD, 0.0, min(began, deadline)))
        edges = [began, *(began + times.complete[row]).tolist()]
        for stage in range(count):
            layer = timing.layers - stage % timing.layers
            spans.append(Span(number, str(layer), edges[stage], edges[stage + 1]))
        if count:
            spans.append(Span(number, UPLOAD, edges[count], float(times.done[row, count - 1])))
        elif began < deadline:
            spans.append(Span(number, LATE, began, deadline))
    return tuple(span for span in spans if span.end > span.start)


def of_model(
    fleet: Fleet,
    model: nn.Module,
    deadline: float | None = None,
    *,
    example: Any = None,
    layers: Any = None,
    batch_size: int = 16,
    local_steps: int = 1,
    batches: str = "equal",
) -> Preview:
    """A model on a fleet. `example` is a batch of inputs, to count the layers' work on.

    Without one, it is made up if the model's first layer says what inputs it takes.
    """
    example = _made_up(model) if example is None else example
    seen_as = Layers.of(model, layers, example)
    cost = Cost.of(model, seen_as, example)
    rows = np.full(len(fleet), batch_size)
    if batches == "equal-time":
        rows = equal_time(fleet.devices, cost, batch_size, local_steps, deadline)
    timing = Timing(
        fleet.devices,
        cost,
        lambda users: rows[users],
        lambda users: np.full(len(users), local_steps),
    )
    return preview(fleet.name, timing, tuple(layer.name for layer in seen_as), deadline)


def _made_up(model: nn.Module) -> Any:
    import torch

    first = next((m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)), None)
    if isinstance(first, nn.Linear):
        return torch.zeros(2, first.in_features)
    raise SalfError(
        "how large are the model's inputs? Pass a batch of them as example=, such as "
        "example=torch.zeros(2, 3, 32, 32)."
    )
