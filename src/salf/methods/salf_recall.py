"""SALF-Recall: SALF for users that stay slow or away. What they sent last stands in, and fades."""

from dataclasses import dataclass
from typing import ClassVar

from salf.arrivals import Closing, Floats
from salf.methods.base import Recalled
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class SALFRecall(WithMemory):
    """Every layer is averaged over all users, each with the last gradient it sent of it.

        step_l = sum_u r[l, u] g[l, u] / sum_u r[l, u]

    with r[l, u] = 1 for users that reached layer l in this round, and fade / (fade + age) for users
    that last reached it `age` rounds ago, whose gradient of then stands in for them. With `fade` 0
    only those who reached it count, as in SALF. p_l is not needed: a layer moves in every round.

    Users that have enough time in every round need no memory: so batches are sized for equal time
    by default, where there are devices to size them for. See docs/recall.md.
    """

    fade: float | None = 2.0

    name: ClassVar[str] = "salf-recall"
    equal_time: ClassVar[bool] = True

    @property
    def recalled(self) -> Recalled:
        """The last update of every user, which stands in for it."""
        return Recalled(self.beta, self.fade, self.remember, stands_in=True)

    def divisor(self, closing: Closing) -> Floats:
        """The mean over who arrived; who is absent is added to it."""
        return closing.weight
