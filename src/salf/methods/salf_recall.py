"""SALF-Recall: SALF for users that stay slow. What they sent last speaks for them, and fades."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from salf.arrivals import Closing, Floats
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class SALFRecall(WithMemory):
    """SALF's layer-wise average of what is new, and the mean of what is remembered.

        step_l = 1/(1 - p_l) mean_{u in U^l} (g[l, u] - y[l, u])  +  mean_u y[l, u]

    y[l, u] is the last gradient of layer l that user u sent, which counts half after `fade` rounds.
    With `fade` 0 nothing is remembered, and this is SALF. Users that are fast for what they have to
    do every round need no memory: so batches are sized for equal time by default, where there are
    devices to size them for. See docs/recall.md.
    """

    name: ClassVar[str] = "salf-recall"
    equal_time: ClassVar[bool] = True

    @property
    def uses_reach(self) -> bool:
        """p_l."""
        return True

    def divisor(self, closing: Closing) -> Floats:
        """[salf_update_rule]: |U^l| (1 - p_l)."""
        # An empty U^l has no weight to divide; only such a layer may have p_l = 1.
        return np.where(closing.shares > 0, closing.shares * (1 - closing.unreached), 1.0)
