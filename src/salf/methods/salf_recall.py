"""SALF-Recall: SALF for users that stay slow, whose last gradients stand in (docs/recall.md)."""

from dataclasses import dataclass
from typing import ClassVar

from salf.methods.base import Recalled, limited
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class SALFRecall(WithMemory):
    """Every layer is averaged over all users, each with the last gradient it sent of it.

        step_l = sum_u r[l, u] g[l, u] / sum_u r[l, u]

    where r[l, u] is 1 for users that reached layer l in this round, fade / (fade + age) for users
    that last reached it `age` rounds ago, represented by that gradient. With `fade` 0, only users
    that reached the layer count, as in SALF. p_l is not needed: every layer moves in every round.

    Users that finish every round need no memory, so batches are sized for equal time by default if
    the run has a fleet or is live. See docs/recall.md.
    """

    fade: float | None = limited(2.0, least=0)

    name: ClassVar[str] = "salf-recall"

    def memory(self) -> Recalled:
        """The last update of every user, which stands in for it."""
        return Recalled(1.0, self.fade, self.remember, stands_in=True)
