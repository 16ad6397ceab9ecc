"""Who is asked in a round, and which of its samples each user computes on."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from torch import Tensor

from salf.arrivals import Floats, Ints
from salf.data import Shares
from salf.draws import Draws, Keyed, Purpose, distinct
from salf.engines import Rows
from salf.errors import SalfError


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


class Batches:
    """Mini-batches from every user's share, without replacement: all of it if it is smaller."""

    def __init__(self, shares: Shares, batch_size: int) -> None:
        if batch_size < 1:
            raise SalfError(f"the batch size is {batch_size}, but must be at least 1.")
        self.shares, self.batch_size = shares, batch_size

    def sizes(self, users: Ints) -> Ints:
        """How many rows these users' batches have."""
        return np.minimum(self.batch_size, self.shares.sizes(users))

    def of_round(self, draws: Draws, users: Ints) -> Rows:
        """The batches of a round's users, as a function of some of them and the local step.

        Those some have batches of one size, and come one after the other. All users' places are
        drawn together when the first is asked for, which is much faster than one by one.
        """
        users = np.sort(users)
        held, sizes = self.shares.sizes(users), self.sizes(users)

        @cache
        def drawn(step: int) -> Ints:
            found = np.zeros((len(users), int(sizes.max())), np.int64)
            for size in np.unique(sizes):
                alike = sizes == size
                own = places(draws, users[alike], held[alike], self.batch_size, step)
                found[alike, :size] = own
            return found

        def rows(some: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
            at = np.searchsorted(users, some)
            return self.shares.rows(some, drawn(step)[at, : sizes[at[0]]])

        return rows


def places(draws: Draws, users: Ints, sizes: Ints, batch_size: int, step: int = 1) -> Ints:
    """Where in their shares, of these sizes, the rows of the users' batches are: [users, rows].

    They are uniform, without replacement; a user has the same ones whoever else takes part.
    """
    rows = min(batch_size, int(sizes.min()))
    return distinct(draws.uniform(users, Purpose.BATCH, rows, step), sizes)
