"""MIFA: absent users are represented by their last update (Gu et al., 2021)."""

from dataclasses import dataclass

import numpy as np

from salf.core.arrivals import Closing, Floats
from salf.methods.family import WithMemory


@dataclass(frozen=True)
class MIFA(WithMemory):
    """The mean over all users of their latest updates."""

    def divisor(self, closing: Closing) -> Floats:
        """All users, asked or not."""
        return np.full(len(closing.shares), closing.everybody)
