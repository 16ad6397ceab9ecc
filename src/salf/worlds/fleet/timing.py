"""When every user is done with what: download, stages of backpropagation, upload."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Draws, Keyed, KeyedRounds, Unkeyed
from salf.worlds.fleet.cost import Cost, stages
from salf.worlds.fleet.devices import Devices
from salf.worlds.fleet.round import Round, Tasks

SIMULATED = 4096  # draws for chances without a closed form
AHEAD = 64  # rounds whose times are drawn at once
MANY = 4096  # entries of a round from which on drawing rounds at once gains nothing


class Timing:
    """The times of users with these devices, in rounds of so many rows and local steps each."""

    def __init__(
        self,
        devices: Devices,
        cost: Cost,
        rows: Callable[[Ints], Ints | Floats],
        planned: Callable[[Ints], Ints],
    ) -> None:
        self.devices, self.cost, self.rows, self.planned = devices, cost, rows, planned
        # Of each class: [classes, stages], the seconds of a row beside the fixed ones.
        seconds = stages(np.array([kind.seconds(cost) for kind in devices.kinds]))
        self._fixed, self._row = seconds[:, 0], seconds[:, 1]
        self._work = stages(np.array([kind.work(cost) for kind in devices.kinds]))
        self.layers = cost.layers
        self.model_bytes, self.update_bytes = float(cost.bytes.sum()), float(cost.upload.sum())
        self._ahead_of: tuple[int, int] | None = None
        self._ahead = np.empty(0)
        self._known_at: float | None = None
        self._known = np.empty(0)

    @property
    def users(self) -> int:
        return len(self.devices.speed)

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
        complete = self._complete(tasks, draws)
        needed, available = complete + tasks.links, self.devices.availability
        return Round(tasks, available, start, complete, available.elapsed(users, start, needed))

    def _complete(self, tasks: Tasks, draws: Draws) -> Floats:
        """When stages are complete. With all users, many rounds are drawn at a time: it is faster.

        That changes nothing: the numbers depend on (seed, round, user) alone.
        """
        jitter, nominal, users = self.devices.jitter, tasks.nominal, tasks.users
        everybody = self._is_everybody(users) and tasks is self._everybody
        if not isinstance(draws, Keyed) or not everybody or nominal.size > MANY:
            return jitter.complete(nominal, draws, users)
        block, place = divmod(draws.t, AHEAD)
        if self._ahead_of != (draws.seed, block):
            rounds = np.repeat(block * AHEAD + np.arange(AHEAD), self.users)
            keyed, repeated = KeyedRounds(draws.seed, rounds), np.tile(users, AHEAD)
            found = jitter.complete(np.tile(nominal, (AHEAD, 1)), keyed, repeated)
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

    def shares(self, users: Ints) -> dict[str, float]:
        """What the median user's round is spent on: links, fixed costs of its steps, and rows."""
        times = self.expected(users)
        median = users[np.argsort(times, kind="stable")[[len(times) // 2]]]
        empty = Timing(self.devices, self.cost, np.zeros_like, self.planned)
        whole, fixed = (float(each.tasks(median).nominal.sum()) for each in (self, empty))
        links = float(self.expected(median)[0]) - whole
        seconds = {"links": links, "fixed": fixed, "rows": whole - fixed}
        return {name: each / (links + whole) for name, each in seconds.items()}

    def reach(self, users: Ints, start: float, seconds: float | Floats) -> Floats:
        """P(user u has uploaded layer l by then), exactly where it is known: [L, users].

        Given when the devices are available, which is known when a round begins. An array of
        several deadlines gives an array [deadlines, L, users].
        """
        available = self.devices.availability
        if not available.always or not isinstance(seconds, float) or not self._is_everybody(users):
            return self.reach_within(users, available.active(users, start, seconds))
        if self._known_at != seconds:
            self._known_at = seconds
            self._known = self.reach_within(users, np.full(len(users), seconds))
        return self._known

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
        total, repeated = np.zeros(budgets.shape), np.repeat(nominal, AHEAD, axis=0)
        for seed in range(SIMULATED // AHEAD):
            draws = Unkeyed(np.random.default_rng(seed))
            drawn = self.devices.jitter.complete(repeated, draws, np.repeat(users, AHEAD))
            complete = drawn.reshape(len(users), AHEAD, -1)
            for own, budget in zip(total, budgets, strict=True):
                own += (complete <= budget[:, None]).sum(axis=1)
        # Never quite 0 or 1, which so many draws cannot tell.
        return np.asarray((total + 0.5) / (SIMULATED + 1))

    def closes(self, round: Round, seconds: float) -> float:
        """When a round ends that closes at the deadline, or when all users are done."""
        if not len(round.tasks.users):
            return seconds
        return min(float(round.finish.max()), seconds)
