"""When every user is done with what: download, stages of backpropagation, upload."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from salf.arrivals import Arrivals, Bools, Floats, Ints, Spent
from salf.compression import Compression, upload_bytes
from salf.draws import Draws, Keyed, KeyedRounds, Unkeyed
from salf.errors import SalfError
from salf.fleet.availability import Availability
from salf.fleet.devices import Devices
from salf.fleet.jitter import Traces
from salf.inputs import Inputs
from salf.layers import Layers
from salf.work import work

SIMULATED = 4096  # draws for chances without a closed form
AHEAD = 64  # rounds whose times are drawn at once
KEPT = 1024  # entries of a round up to which what was drawn for chances is kept
MANY = 4096  # entries of a round from which on drawing rounds at once gains nothing


@dataclass(frozen=True, eq=False)
class Cost:
    """What one row of a batch costs in each layer, and the bytes of the layer.

    `sent` are those of its update where that is compressed.
    """

    forward: Floats  # multiply-adds of layer 1..L
    backward: Floats
    bytes: Floats
    sent: Floats | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layers: Layers,
        example: Tensor,
        compression: Compression | None = None,
    ) -> "Cost":
        """Count on the module, for a batch `example`."""
        found, rows = work(model, layers, example), rows_in(example)
        sent = None
        if compression is not None:
            weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            sent = np.array(upload_bytes(compression, layers, weights), np.float64)
        forward, backward, bytes_ = (
            np.array([getattr(each, name) for each in found], np.float64) / per
            for name, per in (("forward", rows), ("backward", rows), ("bytes", 1))
        )
        return cls(forward, backward, bytes_, sent)

    @property
    def upload(self) -> Floats:
        """The bytes of each layer in an update."""
        return self.bytes if self.sent is None else self.sent

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.bytes)

    def stages(self) -> Floats:
        """Of a stage, from the last layer to the first; the forward pass is in the first stage."""
        found = self.backward[::-1].copy()
        found[0] += self.forward.sum()
        return found

    def counted_as(self, devices: Devices) -> "Cost":
        """The cost in what the devices' speed counts."""
        if devices.counted == "multiply-adds":
            if not self.backward.sum() > 0:
                raise SalfError(
                    "no multiply-adds are counted in this model (matrix products, convolutions and "
                    'attention are), so its time is unknown; use a fleet with counted="layers".'
                )
            return self
        even = np.full(self.layers, 1 / devices.REFERENCE)
        return replace(self, forward=np.zeros(self.layers), backward=even)


MOST = 4  # times the batch size is the largest batch


def equal_time(
    devices: Devices, cost: Cost, batch_size: int, steps: int = 1, seconds: float | None = None
) -> Ints:
    """Batches in proportion to speed, so that they take every user about as long.

    A round takes as long as `batch_size` rows take the median device; or, with a deadline of
    `seconds`, no longer than that leaves after download and upload, without jitter. Nobody has more
    than `MOST` times as many rows, and everybody has one.
    """
    counted = cost.counted_as(devices)
    of_row = steps * float(counted.forward.sum() + counted.backward.sum())
    time = np.full(len(devices.speed), batch_size * of_row / np.median(devices.speed))
    if seconds is not None:
        down, up = float(cost.bytes.sum()), float(cost.upload.sum())
        link = down / devices.down + up / devices.up + 2 * devices.latency
        time = np.minimum(time, np.maximum(seconds - link, 0))
    rows = np.rint(time * devices.speed / of_row)
    return np.clip(rows, 1, MOST * batch_size).astype(np.int64)


def rows_in(example: object) -> int:
    """How many rows a batch has, also one of several inputs."""
    assert isinstance(example, Tensor | Inputs)
    return len(example)


@dataclass(frozen=True, eq=False)
class Tasks:
    """What some users are to do in a round, and how long it takes them without jitter.

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
        """How many each user has."""
        return np.asarray(self.planned * self.layers)

    @cached_property
    def within(self) -> Bools:
        """Which milestones each user has."""
        return np.asarray(np.arange(self.work.shape[1]) < self.milestones[:, None])

    @cached_property
    def work_before(self) -> Floats:
        """The work up to 0, 1, ... milestones."""
        return np.concatenate([np.zeros((len(self.users), 1)), self.work.cumsum(axis=1)], axis=1)

    @cached_property
    def each(self) -> Ints:
        """Rows of these arrays."""
        return np.arange(len(self.users))

    def arrivals(self, reached: Ints, spent: Spent | None = None) -> Arrivals:
        """Users that have so many milestones, as depth and local steps."""
        steps = np.maximum(1, -(-reached // self.layers))
        depth = steps * self.layers + 1 - reached
        return Arrivals.at(depth, user=self.users, steps=steps, planned=self.planned, spent=spent)

    def finish(self, done: Floats) -> Floats:
        """When each user has uploaded all layers of all its steps."""
        return np.asarray(done[self.each, self.milestones - 1])

    def where(self, some: Bools, other: "Tasks") -> "Tasks":
        """These tasks, and for some users those of another, smaller network."""
        pick = some[:, None]
        return replace(
            self,
            work=np.where(pick, other.work, self.work),
            nominal=np.where(pick, other.nominal, self.nominal),
            download=np.where(some, other.download, self.download),
            links=np.where(pick, other.links, self.links),
            bytes=np.where(pick, other.bytes, self.bytes),
        )


class Timing:
    """The times of users with these devices, in rounds of so many rows and local steps each."""

    def __init__(
        self,
        devices: Devices,
        cost: Cost,
        rows: Callable[[Ints], Ints | Floats],
        planned: Callable[[Ints], Ints],
    ) -> None:
        self.devices, self.cost = devices, cost.counted_as(devices)
        self.rows, self.planned = rows, planned
        self.layers = cost.layers
        if isinstance(devices.jitter, Traces) and devices.jitter.layers != self.layers:
            raise SalfError(
                f"the fleet's recorded times are for {devices.jitter.layers} layers, but the "
                f"model has {self.layers}."
            )
        self.model_bytes, self.update_bytes = float(cost.bytes.sum()), float(cost.upload.sum())
        self._everybody: Tasks | None = None
        self._ahead_of: tuple[int, int] | None = None
        self._ahead = np.empty(0)
        self._drawn_of: bytes | None = None
        self._drawn: list[Floats] = []
        self._known_at: float | None = None
        self._known = np.empty(0)

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.devices.speed)

    def tasks(self, users: Ints) -> Tasks:
        """What these users are to do in every round."""
        if not self._is_everybody(users):
            return self._tasks(users)
        if self._everybody is None:
            self._everybody = self._tasks(users)
        return self._everybody

    def _is_everybody(self, users: Ints) -> bool:
        """Whether these are all users in order, of whom more is known."""
        return len(users) == self.users and bool((users[1:] > users[:-1]).all())

    def _tasks(self, users: Ints, times: Ints | int = 1) -> Tasks:
        devices, planned = self.devices, self.planned(users) * times
        steps = int(planned.max(initial=1))
        stages = np.tile(self.cost.stages(), steps)
        work = np.outer(self.rows(users).astype(np.float64), stages)
        work[np.arange(work.shape[1]) >= (planned * self.layers)[:, None]] = 0
        # After the first local step, an update has all layers.
        upload = np.full(steps * self.layers, self.update_bytes)
        upload[: self.layers] = np.cumsum(self.cost.upload[::-1])
        download = self.model_bytes / devices.down[users] + devices.latency[users]
        links = (download + devices.latency[users])[:, None] + upload / devices.up[users, None]
        return Tasks(
            users,
            self.layers,
            planned,
            work,
            work / devices.speed[users, None],
            download,
            links,
            np.tile(self.model_bytes + np.concatenate([[0.0], upload]), (len(users), 1)),
        )

    def round(self, draws: Draws, users: Ints, start: float, times: Ints | None = None) -> "Round":
        """What happens to these users in a round that begins at time `start`.

        With `times`, each user is to do the planned local steps so many times.
        """
        tasks = self.tasks(users) if times is None else self._tasks(users, times)
        complete = self._complete(tasks, draws)
        needed, available = complete + tasks.links, self.devices.availability
        done = needed if available.always else available.elapsed(users, start, needed)
        return Round(tasks, available, start, complete, done)

    def _complete(self, tasks: Tasks, draws: Draws) -> Floats:
        """When stages are complete. With all users, many rounds are drawn at a time: it is faster.

        That changes nothing: the numbers depend on (seed, round, user) alone.
        """
        jitter, nominal, users = self.devices.jitter, tasks.nominal, tasks.users
        as_always = tasks is self._everybody
        if not isinstance(draws, Keyed) or not as_always or nominal.size > MANY:
            return jitter.complete(nominal, draws, users)
        block, place = divmod(draws.t, AHEAD)
        if self._ahead_of != (draws.seed, block):
            rounds = KeyedRounds(
                draws.seed, np.repeat(block * AHEAD + np.arange(AHEAD), self.users)
            )
            repeated = np.tile(users, AHEAD)
            found = jitter.complete(np.tile(nominal, (AHEAD, 1)), rounds, repeated)
            self._ahead = found.reshape(AHEAD, *nominal.shape)
            self._ahead_of = draws.seed, block
        return np.asarray(self._ahead[place])

    def expected(self, users: Ints) -> Floats:
        """When each user is done without jitter, if it is available."""
        return self.tasks(users).finish(self.expected_done(users))

    def expected_done(self, users: Ints) -> Floats:
        """When each milestone has been uploaded without jitter, if the user is available."""
        tasks = self.tasks(users)
        return np.asarray(tasks.nominal.cumsum(axis=1) + tasks.links)

    def reach(self, users: Ints, start: float, seconds: float) -> Floats:
        """P(user u has uploaded layer l by then), exactly where it is known: [L, users].

        Given when the devices are available, which is known when a round begins.
        """
        available = self.devices.availability
        if available.always:
            return self.reach_always(users, seconds)
        return self._reach(users, available.active(users, start, seconds))

    def nobody(self, users: Ints, start: float, seconds: float) -> Floats | None:
        """P(no user has uploaded layer l by then), where users are not independent; else None."""
        count = self.reached_together(users, start, seconds)
        return None if count is None else np.asarray((count == 0).mean(axis=0))

    def reached_together(self, users: Ints, start: float, seconds: float) -> Ints | None:
        """|U^l| in rounds that are alike likely, [rounds, L], of users that are not independent.

        None where they are.
        """
        if not isinstance(self.devices.jitter, Traces):
            return None
        tasks, own = self.tasks(users), np.full(len(users), seconds)
        if not self.devices.availability.always:
            own = self.devices.availability.active(users, start, seconds)
        budget = own[:, None] - tasks.links[:, : self.layers]
        found = self.devices.jitter.in_time(tasks.nominal[:, : self.layers], budget, users)
        return None if found is None else found[:, ::-1]

    def reach_always(self, users: Ints, seconds: float) -> Floats:
        """The same of devices that are available for all of the round."""
        everybody = self._is_everybody(users)
        if everybody and self._known_at == seconds:
            return self._known
        reach = self._reach(users, np.full(len(users), seconds))
        if everybody:
            self._known_at, self._known = seconds, reach
        return reach

    def _reach(self, users: Ints, seconds: Floats) -> Floats:
        """The chances of users that are available for so long."""
        tasks = self.tasks(users)
        # A layer is in the update from the stage of the first local step on that computes it.
        nominal = tasks.nominal[:, : self.layers]
        budget = seconds[:, None] - tasks.links[:, : self.layers]
        chance = self.devices.jitter.chance(nominal, budget, users)
        if chance is None:
            chance = self._simulated(nominal, budget, users)
        return np.asarray(chance[:, ::-1].T)

    def _simulated(self, nominal: Floats, budget: Floats, users: Ints) -> Floats:
        """The same by drawing rounds, always the same ones."""
        drawn: Iterable[Floats] = self._drawn
        if self._drawn_of != users.tobytes():
            drawn = (self._some_rounds(nominal, users, k) for k in range(SIMULATED // AHEAD))
            if nominal.size <= KEPT:
                drawn = self._drawn = list(drawn)
                self._drawn_of = users.tobytes()
        total = sum((complete <= budget[:, None]).sum(axis=1) for complete in drawn)
        # Never quite 0 or 1, which so many draws cannot tell.
        return np.asarray((total + 0.5) / (SIMULATED + 1))

    def _some_rounds(self, nominal: Floats, users: Ints, seed: int) -> Floats:
        """When stages are complete: [users, rounds, stages]."""
        repeated = np.repeat(nominal, AHEAD, axis=0)
        draws = Unkeyed(np.random.default_rng(seed))
        complete = self.devices.jitter.complete(repeated, draws, np.repeat(users, AHEAD))
        return complete.reshape(len(users), AHEAD, -1)

    def beside(self, draws: Draws, users: Ints) -> Floats:
        """The seconds that each user's messages took, where they were recorded; else 0."""
        jitter = self.devices.jitter
        found = jitter.beside(draws, users) if isinstance(jitter, Traces) else None
        return np.zeros(len(users)) if found is None else found

    def closes(self, round: "Round", reached: Ints, seconds: float, draws: Draws) -> float:
        """When a round ends that closes at the deadline, or when all users are done.

        Users whose times were recorded live answer when they stop, before the stage that does not
        fit, and their message takes its time.
        """
        if not len(round.tasks.users):
            return seconds
        jitter = self.devices.jitter
        if not isinstance(jitter, Traces) or jitter.overhead is None:
            return min(float(round.finish.max()), seconds)
        beside = self.beside(draws, round.tasks.users)
        stopped = round.done[round.tasks.each, np.maximum(reached - 1, 0)]
        return float((np.where(reached > 0, stopped, 0.0) + beside).max())


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
        pick = some[:, None]
        return replace(
            self,
            tasks=self.tasks.where(some, other.tasks),
            complete=np.where(pick, other.complete, self.complete),
            done=np.where(pick, other.done, self.done),
        )

    @property
    def finish(self) -> Floats:
        """When each user has uploaded all layers of all its steps."""
        return self.tasks.finish(self.done)

    def reached(self, seconds: float) -> Ints:
        """How many milestones users have after so many seconds."""
        return np.asarray(((self.done <= seconds) & self.tasks.within).sum(axis=1))

    def work_until(self, seconds: float) -> Floats:
        """The work each user has done so many seconds after the round began, finished or not."""
        own: float | Floats = seconds
        if not self.available.always:
            own = self.available.active(self.tasks.users, self.start, seconds)
        tasks, computing = self.tasks, np.asarray(own - self.tasks.download)
        complete = (self.complete <= computing[:, None]).sum(axis=1)
        # Of the stage a user is in, as much as of its time has passed; after the last, none.
        stage = np.minimum(complete, self.complete.shape[1] - 1)
        end = self.complete[tasks.each, stage]
        begin = np.where(stage > 0, self.complete[tasks.each, stage - 1], 0.0)
        part = np.clip((computing - begin) / np.where(end > begin, end - begin, np.inf), 0, 1)
        current = np.where(complete == stage, part * tasks.work[tasks.each, stage], 0.0)
        return np.asarray(tasks.work_before[tasks.each, complete] + current)

    def work_behind(self, reached: Ints) -> Floats:
        """The work behind what each user delivered."""
        return np.asarray(self.tasks.work_before[self.tasks.each, reached])

    def bytes_for(self, reached: Ints, seconds: float) -> Floats:
        """The bytes of each user's download, as far as it got in so many seconds, and upload."""
        tasks = self.tasks
        own = np.full(len(tasks.users), seconds)
        if not self.available.always:
            own = self.available.active(tasks.users, self.start, seconds)
        # A download that takes no time needs a device that is there at all.
        there = (own > 0).astype(np.float64)
        begun = np.divide(own, tasks.download, out=there, where=tasks.download > 0)
        unfinished = tasks.bytes[:, 0] * (1 - np.minimum(begun, 1))
        return np.asarray(tasks.bytes[tasks.each, reached] - unfinished)
