"""When users are done with what in a round: download, stages of backpropagation, upload."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from salf.core.arrivals import Arrivals, Bools, Floats, Ints, Spent
from salf.core.draws import Draws, Unkeyed
from salf.worlds.fleet.availability import Availability
from salf.worlds.fleet.cost import Cost, stages
from salf.worlds.fleet.devices import Fleet

SIMULATED, AT_ONCE = 4096, 64  # draws for chances without a closed form, and how many at a time


@dataclass(frozen=True, eq=False)
class Tasks:
    """The work of some users in a round, and how long it takes them without jitter.

    Arrays over milestones, [users, milestones], have the stages of all local steps: in each the
    layers from the last to the first. Users with fewer steps than others have no work beyond them.
    """

    users: Ints
    layers: int
    planned: Ints  # local steps
    work: Floats
    nominal: Floats  # seconds of each stage
    download: Floats  # seconds until work begins
    links: Floats  # seconds of download, and upload of what is there at each milestone
    bytes: Floats  # of the download, and of such uploads: [users, 1 + milestones]

    @cached_property
    def milestones(self) -> Ints:
        return np.asarray(self.planned * self.layers)

    @cached_property
    def within(self) -> Bools:
        return np.asarray(np.arange(self.work.shape[1]) < self.milestones[:, None])

    @cached_property
    def work_before(self) -> Floats:
        """The work up to 0, 1, ... milestones."""
        return np.concatenate([np.zeros((len(self.users), 1)), self.work.cumsum(axis=1)], axis=1)

    @cached_property
    def each(self) -> Ints:
        return np.arange(len(self.users))

    def arrivals(self, reached: Ints, **more: Any) -> Arrivals:
        """The arrivals of users that have so many milestones, as depth and local steps."""
        steps = np.maximum(1, -(-reached // self.layers))
        depth = steps * self.layers + 1 - reached
        return Arrivals(depth, user=self.users, steps=steps, planned=self.planned, **more)

    def finish(self, done: Floats) -> Floats:
        """When each user has uploaded all layers of all its steps."""
        return np.asarray(done[self.each, self.milestones - 1])


@dataclass(frozen=True, eq=False)
class Round:
    """The times of some users in one round, in seconds since it began: [users, milestones]."""

    tasks: Tasks
    available: Availability
    start: float
    complete: Floats  # computed, counted from the end of the download
    done: Floats  # uploaded

    @cached_property
    def finish(self) -> Floats:
        return self.tasks.finish(self.done)

    def closes(self, seconds: float) -> float:
        """When the round ends if it closes at this deadline, or when all users are done."""
        return min(float(self.finish.max()), seconds) if len(self.finish) else seconds

    def reached(self, seconds: float) -> Ints:
        """How many milestones each user has after so many seconds."""
        return np.asarray(((self.done <= seconds) & self.tasks.within).sum(axis=1))

    def where(self, some: Bools, other: "Round") -> "Round":
        """This round, and for some users another one."""
        tasks = _where(some, other.tasks, self.tasks)
        return replace(_where(some, other, self), tasks=tasks)

    def spent(self, reached: Ints, seconds: float) -> Spent:
        """The cost of a round of so many seconds in which users work until they are done."""
        tasks, available = self.tasks, self.available.active(self.tasks.users, self.start, seconds)
        # Of the download, as far as it got; one that takes no time needs a device that is there.
        there = (available > 0).astype(np.float64)
        begun = np.divide(available, tasks.download, out=there, where=tasks.download > 0)
        unfinished = tasks.bytes[:, 0] * (1 - np.minimum(begun, 1))
        return Spent(
            seconds=seconds,
            clock=self.start + seconds,
            waited=np.maximum(seconds - self.finish, 0),
            work=self._work_after(available),
            counted=np.asarray(tasks.work_before[tasks.each, reached]),
            bytes=np.asarray(tasks.bytes[tasks.each, reached] - unfinished),
        )

    def _work_after(self, available: Floats) -> Floats:
        """The work each user has done in so many seconds that it is available, finished or not."""
        tasks, computing = self.tasks, available - self.tasks.download
        complete = (self.complete <= computing[:, None]).sum(axis=1)
        # Of the stage a user is in, as much as of its time has passed; after the last, none.
        stage = np.minimum(complete, self.complete.shape[1] - 1)
        end = self.complete[tasks.each, stage]
        begin = np.where(stage > 0, self.complete[tasks.each, stage - 1], 0.0)
        part = np.clip((computing - begin) / np.where(end > begin, end - begin, np.inf), 0, 1)
        current = np.where(complete == stage, part * tasks.work[tasks.each, stage], 0.0)
        return np.asarray(tasks.work_before[tasks.each, complete] + current)


Arrays = TypeVar("Arrays", Tasks, Round)


def _where(some: Bools, theirs: Arrays, own: Arrays) -> Arrays:
    """An object with the arrays of one for some users, and of the other for the rest."""
    names = [each.name for each in fields(own) if isinstance(getattr(own, each.name), np.ndarray)]
    pairs = {name: (getattr(theirs, name).T, getattr(own, name).T) for name in names}
    return replace(own, **{name: np.where(some, *pair).T for name, pair in pairs.items()})


class Timing:
    """The times of users with these devices, in rounds of so many rows and local steps each."""

    def __init__(
        self,
        devices: Fleet,
        cost: Cost,
        rows: Callable[[Ints], Ints | Floats],
        planned: Callable[[Ints], Ints],
    ) -> None:
        self.devices, self.cost, self.rows, self.planned = devices, cost, rows, planned
        # Of each class: [classes, stages], the seconds of a row beside the fixed ones.
        seconds = stages(np.array([kind.seconds(cost) for kind in devices.kinds]))
        self._fixed, self._row = seconds[:, 0], seconds[:, 1]
        self._work = stages(np.array([kind.work(cost) for kind in devices.kinds]))
        self.users, self.layers = len(devices), cost.layers
        self.model_bytes, self.update_bytes = float(cost.bytes.sum()), float(cost.upload.sum())
        self._known: tuple[float, Floats] | None = None

    def tasks(self, users: Ints) -> Tasks:
        """The tasks of these users in every round."""
        return self._everybody if self._is_everybody(users) else self._tasks(users)

    @cached_property
    def _everybody(self) -> Tasks:
        return self._tasks(np.arange(self.users))

    def _is_everybody(self, users: Ints) -> bool:
        """Whether these are all users in order, of whom more is known."""
        return len(users) == self.users and bool((users[1:] > users[:-1]).all())

    def _tasks(self, users: Ints, times: Ints | int = 1) -> Tasks:
        devices, planned = self.devices, self.planned(users) * times
        steps = int(planned.max(initial=1))
        kind, rows = devices.kind[users], self.rows(users).astype(np.float64)[:, None]
        work = np.tile(rows * self._work[kind], steps)
        seconds = self._fixed[kind] + rows * self._row[kind]
        nominal = np.tile(seconds / devices.speed[users, None], steps)
        for each in (work, nominal):
            each[np.arange(each.shape[1]) >= (planned * self.layers)[:, None]] = 0
        # After the first local step, an update has all layers.
        upload = np.full(steps * self.layers, self.update_bytes)
        upload[: self.layers] = np.cumsum(self.cost.upload[::-1])
        download = self.model_bytes / devices.down[users] + devices.latency[users]
        links = (download + devices.latency[users])[:, None] + upload / devices.up[users, None]
        sent = np.tile(self.model_bytes + np.concatenate([[0.0], upload]), (len(users), 1))
        return Tasks(users, self.layers, planned, work, nominal, download, links, sent)

    def round(self, draws: Draws, users: Ints, start: float, times: Ints | None = None) -> Round:
        """The times of these users in a round that begins at time `start`.

        With `times`, each user is to do the planned local steps so many times.
        """
        tasks = self.tasks(users) if times is None else self._tasks(users, times)
        available = self.devices.availability
        complete = self.devices.jitter.complete(tasks.nominal, draws, users)
        done = available.elapsed(users, start, complete + tasks.links)
        return Round(tasks, available, start, complete, done)

    def expected(self, users: Ints) -> Floats:
        """When each user is done without jitter, if it is available."""
        return self.tasks(users).finish(self.expected_done(users))

    def expected_done(self, users: Ints) -> Floats:
        """When each milestone has been uploaded without jitter, if the user is available."""
        tasks = self.tasks(users)
        return np.asarray(tasks.nominal.cumsum(axis=1) + tasks.links)

    def shares(self, users: Ints) -> dict[str, float]:
        """What the median user's round is spent on: links, fixed costs of its steps, and rows."""
        order = np.argsort(self.expected(users), kind="stable")
        tasks = self.tasks(users[order[[len(users) // 2]]])
        (user,), (steps,) = tasks.users, tasks.planned
        fixed = steps * self._fixed[self.devices.kind[user]].sum() / self.devices.speed[user]
        whole, links = tasks.nominal.sum(), tasks.links[0, tasks.milestones[0] - 1]
        seconds = {"links": links, "fixed": fixed, "rows": whole - fixed}
        return {name: float(each / (links + whole)) for name, each in seconds.items()}

    def reach(self, users: Ints, start: float, seconds: float | Floats) -> Floats:
        """P(user u has uploaded layer l by then), exactly where it is known: [L, users].

        Given when the devices are available, which is known when a round begins. An array of
        several deadlines gives an array [deadlines, L, users].
        """
        available = self.devices.availability
        if not available.always or not isinstance(seconds, float) or not self._is_everybody(users):
            return self.reach_within(users, available.active(users, start, seconds))
        if self._known is None or self._known[0] != seconds:  # a deadline may be constant
            self._known = seconds, self.reach_within(users, np.full(len(users), seconds))
        return self._known[1]

    def reach_within(self, users: Ints, seconds: Floats) -> Floats:
        """The reach of users that are available for so long."""
        tasks = self.tasks(users)
        # A layer is in the update from the stage of the first local step on that computes it.
        nominal = tasks.nominal[:, : self.layers]
        budgets = (seconds[..., None] - tasks.links[:, : self.layers]).reshape(-1, *nominal.shape)
        found = [self.devices.jitter.chance(nominal, budget, users) for budget in budgets]
        known = [chance for chance in found if chance is not None]
        chances = np.array(known) if known else self._simulated(nominal, budgets, users)
        reach = chances[..., ::-1].swapaxes(1, 2)
        return reach.reshape(*seconds.shape[:-1], *reach.shape[1:])

    def _simulated(self, nominal: Floats, budgets: Floats, users: Ints) -> Floats:
        """The chances by drawing rounds, always the same ones: [budgets, users, stages]."""
        total, repeated = np.zeros(budgets.shape), np.repeat(nominal, AT_ONCE, axis=0)
        for seed in range(SIMULATED // AT_ONCE):
            draws = Unkeyed(np.random.default_rng(seed))
            drawn = self.devices.jitter.complete(repeated, draws, np.repeat(users, AT_ONCE))
            complete = drawn.reshape(len(users), AT_ONCE, -1)
            for own, budget in zip(total, budgets, strict=True):
                own += (complete <= budget[:, None]).sum(axis=1)
        # Never quite 0 or 1, which so many draws cannot tell.
        return np.asarray((total + 0.5) / (SIMULATED + 1))
