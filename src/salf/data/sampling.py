"""Who is asked in a round, and which of its samples each user computes on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints
from salf.core.draws import Draws, Keyed, Purpose, distinct
from salf.data import UsersData


@dataclass(frozen=True, eq=False)
class Cohort:
    """`size` of `users` users, drawn for each round, uniformly or by `weights`."""

    users: int
    size: int
    weights: Floats | None = None  # of every user

    def draw(self, draws: Keyed, busy: Ints) -> Ints:
        """The users asked, in order; those still `busy` only if there are too few others."""
        if self.size >= self.users:
            return np.arange(self.users)
        rng = np.random.default_rng([draws.seed, draws.t, Purpose.COHORT])
        free = None if not len(busy) else np.delete(np.arange(self.users), busy)
        count = self.users if free is None else len(free)
        size = min(self.size, count)
        if self.weights is None:
            chosen = rng.choice(count, size, replace=False, shuffle=False)
        else:
            # One after the other in proportion to the weights (Efraimidis and Spirakis, 2006).
            waits = rng.exponential(size=self.users) / self.weights
            chosen = np.argsort(waits if free is None else waits[free])[:size]
        users = chosen if free is None else free[chosen]
        return np.sort(np.concatenate([users, busy[: self.size - size]]))


@dataclass(frozen=True)
class LocalWork:
    """The work of every user in a round: local steps, or epochs through its part.

    `rate` is the users' own learning rate; by default they use the server's.
    """

    steps: int = 1
    epochs: int = 0  # instead of steps
    rate: float | None = None

    @property
    def several(self) -> bool:
        return self.steps > 1 or self.epochs > 0

    def planned(self, sizes: Ints, batch_size: int | Ints) -> Ints:
        """The local steps of users with so many samples, and batches of this size."""
        if self.epochs:
            return np.asarray(self.epochs * -(-sizes // batch_size))
        return np.full(len(sizes), self.steps)


ONE_STEP = LocalWork()


AHEAD = 4  # local steps that are drawn at a time


class Batches:
    """Mini-batches from every user's part, without replacement: all of it if it is smaller.

    The batch size is one for all users, or one for each. With `epochs`, local steps pass through
    permutations of the part instead; the last batch of each may be smaller.
    """

    def __init__(self, data: UsersData, batch_size: int | Ints, epochs: int = 0) -> None:
        if np.min(batch_size) < 1:
            raise SalfError(f"the batch size must be at least 1, not {np.min(batch_size)}.")
        self.data, self.batch_size, self.epochs = data, batch_size, epochs

    def sizes(self, users: Ints) -> Ints:
        return np.minimum(self.wanted(users), self.data.sizes(users))

    def usual_sizes(self, users: Ints) -> Floats:
        """How many rows a local step of these users has on average."""
        held = self.data.sizes(users)
        if not self.epochs:
            return np.asarray(self.sizes(users), np.float64)
        return np.asarray(held / -(-held // self.wanted(users)))

    def wanted(self, users: Ints) -> int | Ints:
        """The size of these users' batches, if they have as many samples."""
        return self.batch_size if isinstance(self.batch_size, int) else self.batch_size[users]

    def steps(self, local: LocalWork) -> Callable[[Ints], Ints]:
        """How many local steps users are to do in a round, as a function of the users."""
        return lambda users: local.planned(self.data.sizes(users), self.wanted(users))

    def of_round(self, draws: Draws, users: Ints) -> "RoundBatches":
        return RoundBatches(self, draws, users)


class RoundBatches:
    """The mini-batches of the users of one round, drawn for all of them at the same time."""

    def __init__(self, batches: Batches, draws: Draws, users: Ints) -> None:
        self._batches, self._draws, self._users = batches, draws, np.sort(users)
        self._held = batches.data.sizes(self._users)
        self._drawn: dict[int, tuple[Ints, Ints]] = {}
        self._orders: dict[tuple[int, int], Ints] = {}  # by user and epoch

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        at = np.searchsorted(self._users, users)
        found, sizes = self._of_step(step)
        return self._batches.data.rows(users, found[at, : sizes[at[0]]])

    def sizes(self, users: Ints, step: int = 1) -> Ints:
        return self._of_step(step)[1][np.searchsorted(self._users, users)]

    def _of_step(self, step: int) -> tuple[Ints, Ints]:
        """Where in their parts all users' rows are, and how many each has."""
        if step not in self._drawn:
            sizes = np.minimum(self._batches.wanted(self._users), self._held)
            self._drawn |= (
                self._epoch(step, sizes) if self._batches.epochs else self._steps(step, sizes)
            )
        return self._drawn[step]

    def _epoch(self, step: int, sizes: Ints) -> dict[int, tuple[Ints, Ints]]:
        """A step of users that pass through their parts; the last batch may be smaller."""
        found = np.zeros((len(sizes), int(sizes.max())), np.int64)
        users = zip(self._users.tolist(), self._held.tolist(), sizes.tolist(), strict=True)
        for row, (user, held, size) in enumerate(users):
            epoch, batch = divmod(step - 1, -(-held // size))
            if (user, epoch) not in self._orders:
                self._orders[user, epoch] = epoch_order(self._draws, user, held, epoch)
            own = self._orders[user, epoch][batch * size : (batch + 1) * size]
            found[row, : len(own)], sizes[row] = own, len(own)
        return {step: (found, sizes)}

    def _steps(self, step: int, sizes: Ints) -> dict[int, tuple[Ints, Ints]]:
        """A step or, after the first one, several: drawn together they cost little more."""
        steps = np.arange(step, step + (AHEAD if step > 1 else 1))
        found = np.zeros((len(steps), len(sizes), int(sizes.max())), np.int64)
        for count in np.unique(sizes):
            alike = np.flatnonzero(sizes == count)
            who, at = np.tile(alike, len(steps)), np.repeat(steps, len(alike))[:, None]
            own = places(self._draws, self._users[who], self._held[who], count, at)
            found[:, alike, :count] = own.reshape(len(steps), len(alike), -1)
        return {each: (rows, sizes) for each, rows in zip(steps.tolist(), found, strict=True)}


def places(draws: Draws, users: Ints, sizes: Ints, batch_size: int, step: int | Ints = 1) -> Ints:
    """Where in their parts, of these sizes, the rows of the users' batches are: [users, rows].

    They are uniform, without replacement; a user has the same ones whoever else takes part.
    """
    rows = min(batch_size, int(sizes.min()))
    return distinct(draws.uniform(users, Purpose.BATCH, rows, step), sizes)


def epoch_places(draws: Draws, user: int, size: int, batch_size: int, step: int) -> Ints:
    """Places for one user whose local steps pass through its part, in a new order each epoch."""
    epoch, batch = divmod(step - 1, -(-size // batch_size))
    order = epoch_order(draws, user, size, epoch)
    return order[batch * batch_size : (batch + 1) * batch_size]


def epoch_order(draws: Draws, user: int, size: int, epoch: int) -> Ints:
    """The order in which a user passes through its part in an epoch (0, 1, ...)."""
    numbers = draws.uniform(np.array([user]), Purpose.EPOCH, size, epoch + 1)[0]
    return np.argsort(numbers, kind="stable")
