"""When every user is done with what: download, stages of backpropagation, upload."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor, nn

from salf.arrivals import Arrivals, Bools, Floats, Ints
from salf.draws import Draws, Keyed, KeyedRounds, Unkeyed
from salf.errors import SalfError
from salf.fleet.devices import Devices
from salf.fleet.jitter import Traces
from salf.layers import Layers
from salf.work import work

SIMULATED = 4096  # draws for chances without a closed form
AHEAD = 64  # rounds whose times are drawn at once
MANY = 4096  # entries of a round from which on drawing rounds at once gains nothing


@dataclass(frozen=True, eq=False)
class Cost:
    """What one row of a batch costs in each layer, and the bytes of the layer in an update."""

    forward: Floats  # multiply-adds of layer 1..L
    backward: Floats
    bytes: Floats

    @classmethod
    def of(cls, model: nn.Module, layers: Layers, example: Tensor) -> "Cost":
        """Count on the module, for a batch `example`."""
        found, rows = work(model, layers, example), rows_in(example)
        cost = cls(
            *(
                np.array([getattr(each, name) for each in found], np.float64) / per
                for name, per in (("forward", rows), ("backward", rows), ("bytes", 1))
            )
        )
        if not cost.backward.sum() > 0:
            raise SalfError(
                "no multiply-adds are counted in this model (matrix products, convolutions and "
                'attention are), so its time is unknown; use a fleet with counted="layers".'
            )
        return cost

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
        size = float(cost.bytes.sum())
        link = size / devices.down + size / devices.up + 2 * devices.latency
        time = np.minimum(time, np.maximum(seconds - link, 0))
    rows = np.rint(time * devices.speed / of_row)
    return np.clip(rows, 1, MOST * batch_size).astype(np.int64)


def rows_in(example: object) -> int:
    """How many rows a batch has, also one of several inputs."""
    while not isinstance(example, Tensor):
        assert isinstance(example, dict | tuple | list)
        example = next(iter(example.values() if isinstance(example, dict) else example))
    return len(example)


class Timing:
    """The times of users with these devices, in rounds of so many rows and local steps each.

    Milestones are the stages of a round: in each local step the layers from the last to the first.
    """

    def __init__(
        self,
        devices: Devices,
        cost: Cost,
        rows: Callable[[Ints], Ints],
        planned: Callable[[Ints], Ints],
    ) -> None:
        self.devices, self.cost = devices, cost.counted_as(devices)
        self.rows, self.planned = rows, planned
        self.layers = cost.layers
        self._stage_work = self.cost.stages()
        self._sent = np.cumsum(cost.bytes[::-1])  # bytes up to each stage of the first step
        self.model_bytes = float(cost.bytes.sum())
        self._ahead_of: tuple[int, int] | None = None
        self._ahead = np.empty(0)
        self._known_at: float | None = None
        self._known = np.empty(0)

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.devices.speed)

    def work(self, users: Ints) -> Floats:
        """The work of each stage of each user's round: [users, milestones]."""
        steps = int(self.planned(users).max(initial=1))
        return np.asarray(np.outer(self.rows(users), np.tile(self._stage_work, steps)))

    def nominal(self, users: Ints) -> Floats:
        """The seconds of each stage without jitter: [users, milestones]."""
        return np.asarray(self.work(users) / self.devices.speed[users, None])

    def links(self, users: Ints, milestones: int) -> Floats:
        """The seconds of download and of the upload of what is there at each milestone."""
        devices = self.devices
        sent = self.sent(np.arange(1, milestones + 1))
        down = self.model_bytes / devices.down[users]
        both = down + 2 * devices.latency[users]
        return np.asarray(both[:, None] + sent / devices.up[users, None])

    def sent(self, milestones: Ints) -> Floats:
        """The bytes of an update with so many milestones: after the first step, of all layers."""
        return np.asarray(np.concatenate([[0.0], self._sent])[np.minimum(milestones, self.layers)])

    def round(self, draws: Draws, users: Ints, start: float) -> "Round":
        """What happens to these users in a round that begins at time `start`."""
        nominal = self.nominal(users)
        complete = self._complete(nominal, draws, users)
        links = self.links(users, nominal.shape[1])
        needed, available = complete + links, self.devices.availability
        done = needed if available.always else available.elapsed(users, start, needed)
        return Round(self, users, start, complete, done)

    def _complete(self, nominal: Floats, draws: Draws, users: Ints) -> Floats:
        """When stages are complete. With all users, many rounds are drawn at a time: it is faster.

        That changes nothing: the numbers depend on (seed, round, user) alone.
        """
        jitter = self.devices.jitter
        if not isinstance(draws, Keyed) or len(users) != self.users or nominal.size > MANY:
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
        """When each milestone has been uploaded without jitter, always available."""
        nominal = self.nominal(users)
        return np.asarray(nominal.cumsum(axis=1) + self.links(users, nominal.shape[1]))

    def reach(self, users: Ints, start: float, seconds: float) -> Floats:
        """P(user u has uploaded layer l by then), exactly where it is known: [L, users].

        Given when the devices are available, which is known when a round begins.
        """
        available = self.devices.availability
        if available.always:
            return self.reach_always(users, seconds)
        return self._reach(users, available.active(users, start, seconds))

    def reach_always(self, users: Ints, seconds: float) -> Floats:
        """The same of devices that are available for all of the round."""
        everybody = len(users) == self.users
        if everybody and self._known_at == seconds:
            return self._known
        reach = self._reach(users, np.full(len(users), seconds))
        if everybody:
            self._known_at, self._known = seconds, reach
        return reach

    def _reach(self, users: Ints, seconds: Floats) -> Floats:
        """The chances of users that are available for so long."""
        nominal = self.nominal(users)
        budget = seconds[:, None] - self.links(users, nominal.shape[1])
        # A layer is in the update from the stage of the first local step on that computes it.
        nominal, budget = nominal[:, : self.layers], budget[:, : self.layers]
        chance = self.devices.jitter.chance(nominal, budget, users)
        if chance is None:
            chance = self._simulated(nominal, budget, users)
        return np.asarray(chance[:, ::-1].T)

    def _simulated(self, nominal: Floats, budget: Floats, users: Ints) -> Floats:
        """The same by drawing rounds, always the same ones."""
        total, at_once = np.zeros_like(budget), 64
        for k in range(SIMULATED // at_once):
            complete = self.devices.jitter.complete(
                np.repeat(nominal, at_once, axis=0),
                Unkeyed(np.random.default_rng(k)),
                np.repeat(users, at_once),
            )
            fits = complete <= np.repeat(budget, at_once, axis=0)
            total += fits.reshape(len(users), at_once, -1).sum(axis=1)
        return np.asarray(total / SIMULATED)

    def reached(self, done: Floats, users: Ints, seconds: float) -> Arrivals:
        """How far users are after so many seconds: depth and local steps."""
        planned = self.planned(users)
        within = np.arange(done.shape[1]) < (planned * self.layers)[:, None]
        count = ((done <= seconds) & within).sum(axis=1)
        steps = np.maximum(1, -(-count // self.layers))
        depth = self.layers + 1 - (count - (steps - 1) * self.layers)
        return Arrivals.at(depth, user=users, steps=steps, planned=planned)

    def closes(self, round: "Round", arrived: Arrivals, seconds: float, draws: Draws) -> float:
        """When a round ends that closes at the deadline, or when all users are done.

        Users whose times were recorded live answer when they stop, before the stage that does not
        fit, and their message takes its time.
        """
        users, jitter = round.users, self.devices.jitter
        if not len(users):
            return seconds
        beside = jitter.beside(draws, users) if isinstance(jitter, Traces) else None
        if beside is None:
            return min(float(self.finish(round.done, users).max()), seconds)
        count = (arrived.steps - 1) * self.layers + self.layers + 1 - arrived.depth
        stopped = round.done[np.arange(len(users)), np.maximum(count - 1, 0)]
        return float((np.where(count > 0, stopped, 0.0) + beside).max())

    def finish(self, done: Floats, users: Ints) -> Floats:
        """When each user has uploaded all layers of all its steps."""
        last = self.planned(users) * self.layers - 1
        return np.asarray(done[np.arange(len(users)), last])

    def work_of_round(self, users: Ints) -> Floats:
        """All the work of a round, of each user."""
        return np.asarray(self.rows(users) * self.planned(users) * self._stage_work.sum())


@dataclass(frozen=True, eq=False)
class Round:
    """The times of some users in one round, in seconds since it began: [users, milestones]."""

    timing: Timing
    users: Ints
    start: float
    complete: Floats  # computed, counted from the end of the download
    done: Floats  # uploaded

    def where(self, some: Bools, other: "Round") -> "Round":
        """This round, and for some users another one."""
        pick = some[:, None]
        return Mixed(
            self.timing,
            self.users,
            self.start,
            np.where(pick, other.complete, self.complete),
            np.where(pick, other.done, self.done),
            some,
            other.timing,
        )

    def stage_work(self) -> Floats:
        """The work of each stage, 0 beyond those that are planned."""
        work = self.timing.work(self.users)
        beyond = (
            np.arange(work.shape[1])
            >= (self.timing.planned(self.users) * self.timing.layers)[:, None]
        )
        return np.where(beyond, 0.0, work)

    def work_until(self, seconds: float) -> Floats:
        """The work each user has done so many seconds after the round began, finished or not."""
        devices, available = self.timing.devices, self.timing.devices.availability
        own: float | Floats = seconds
        if not available.always:
            own = available.active(self.users, self.start, seconds)
        began = self.timing.model_bytes / devices.down[self.users] + devices.latency[self.users]
        computing = np.asarray(own - began)[:, None]
        before = np.concatenate([np.zeros((len(self.users), 1)), self.complete[:, :-1]], axis=1)
        lasted = self.complete - before
        part = np.divide(
            computing - before, lasted, out=np.ones_like(lasted), where=lasted > 0
        ).clip(0, 1)
        return np.asarray((part * self.stage_work()).sum(axis=1))

    def work_behind(self, arrived: Arrivals) -> Floats:
        """The work behind what each user delivered."""
        upto = self._milestones(arrived)
        before = np.arange(self.complete.shape[1]) < upto[:, None]
        return np.asarray((self.stage_work() * before).sum(axis=1))

    def bytes_for(self, arrived: Arrivals) -> Floats:
        """The bytes of each user's download and upload."""
        return self.timing.model_bytes + self.timing.sent(self._milestones(arrived))

    def _milestones(self, arrived: Arrivals) -> Ints:
        layers = self.timing.layers
        return np.asarray((arrived.steps - 1) * layers + layers + 1 - arrived.depth)


@dataclass(frozen=True, eq=False)
class Mixed(Round):
    """A round in which some users have another network, which is less work."""

    some: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    other: Timing | None = None

    def stage_work(self) -> Floats:
        """That of the network each user has."""
        assert self.other is not None
        theirs = Round(self.other, self.users, self.start, self.complete, self.done).stage_work()
        return np.where(self.some[:, None], theirs, super().stage_work())
