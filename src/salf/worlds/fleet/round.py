"""One round of some users: their work, and when they are done with it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from salf.core.arrivals import Arrivals, Bools, Floats, Ints, Spent
from salf.worlds.fleet.availability import Availability


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

    def where(self, some: Bools, other: "Tasks") -> "Tasks":
        """These tasks, and for some users those of another, smaller network."""
        names = "work", "nominal", "download", "links", "bytes"
        return replace(self, **_picked(self, some, other, *names))


@dataclass(frozen=True, eq=False)
class Round:
    """The times of some users in one round, in seconds since it began: [users, milestones]."""

    tasks: Tasks
    available: Availability
    start: float
    complete: Floats  # computed, counted from the end of the download
    done: Floats  # uploaded

    def where(self, some: Bools, other: "Round") -> "Round":
        """This round, and for some users another one."""
        tasks = self.tasks.where(some, other.tasks)
        return replace(self, tasks=tasks, **_picked(self, some, other, "complete", "done"))

    @cached_property
    def finish(self) -> Floats:
        return self.tasks.finish(self.done)

    def reached(self, seconds: float) -> Ints:
        """How many milestones each user has after so many seconds."""
        return np.asarray(((self.done <= seconds) & self.tasks.within).sum(axis=1))

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


def _picked(of: Any, some: Bools, other: Any, *names: str) -> dict[str, Any]:
    """Arrays of one object, and for some users those of another."""
    pairs = {name: (getattr(of, name).T, getattr(other, name).T) for name in names}
    return {name: np.where(some, theirs, own).T for name, (own, theirs) in pairs.items()}
