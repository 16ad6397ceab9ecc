"""AsyncFL: stragglers finish late, on the model they were given, and are averaged in then."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from salf.depth import Ints
from salf.errors import SalfError, unknown
from salf.methods.base import Group, Method, Plan, Round

Stale = Literal["difference", "model"]
GIVEN, DUE = 0, 1  # rows of the memory: the round a user was given its model, the round it delivers


@dataclass(frozen=True)
class AsyncFL(Method):
    """A straggler of depth d is busy for `delay` * d rounds, then delivers its full update.

    It starts in round t, is busy in rounds t .. t + delay d - 1, and takes part in the average of
    round t + delay d with that update alone; it may be drawn as a straggler again at once. The
    paper's "participates in the averaging" has two readings: the difference the user made to its
    old model is added (`stale="difference"`), or the old model so changed is averaged with the
    others (`stale="model"`). `discount`: a weight (1 + staleness)^-discount; 0 is none.
    """

    delay: int = 2
    stale: Stale = "difference"
    discount: float = 0.0

    name: ClassVar[str] = "asyncfl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay < 1 or self.discount < 0:
            raise SalfError(
                f"AsyncFL needs delay >= 1 and discount >= 0, not {self.delay}, {self.discount}."
            )
        if self.stale not in get_args(Stale):
            raise unknown("reading of stale updates", self.stale, get_args(Stale))

    def start(self, users: int) -> Ints:
        """Nobody is busy: [given, due] x users, 0 for idle."""
        return np.zeros((2, users), np.int64)

    def models_in_use(self, memory: Ints) -> set[int]:
        """The models given to users who have not delivered."""
        return set(memory[GIVEN][memory[DUE] > 0].tolist())

    def plan(self, round: Round, memory: Ints) -> tuple[Plan, Ints]:
        """This round's average: users on time, and those whose old update is due."""
        t, layers, users = round.t, len(round.unreached), memory.shape[1]
        delivers, busy = memory[DUE] == t, memory[DUE] > t
        depths = round.depth.draw(round.rng, busy)
        starts = depths.straggler & ~busy
        on_time = ~depths.straggler & ~delivers

        given = np.where(delivers, memory[GIVEN], t)
        share = np.where(delivers | on_time, (1.0 + t - given) ** -self.discount, 0.0)
        # With a discount the stale count for less, in the sum and in what it is divided by.
        over = users if self.average == "all" else max(share.sum(), np.finfo(np.float64).tiny)
        groups = tuple(
            Group.of(np.tile(np.where(given == g, share / over, 0.0), (layers, 1)), int(g))
            for g in np.unique(given[delivers | on_time])
        )

        after = memory.copy()
        after[:, delivers] = 0
        after[GIVEN, starts], after[DUE, starts] = t, t + self.delay * depths.depth[starts]
        return Plan(groups, average_models=self.stale == "model"), after
