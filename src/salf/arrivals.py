"""Who arrived at a step of the server, and how far: what a world makes and a method weighs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrivals:
    """The users of one step, an entry each.

    A depth d in {1..L+1} means that the gradients of layers d..L arrived: 1 is all of them, L + 1
    none. In the experiments' mixture a straggler's depth may happen to be 1, so `straggler` is not
    the same as `depth > 1`. `age` is how many rounds ago the model was handed out that the user
    computed on; 0 is this round's.
    """

    depth: Ints
    straggler: Bools
    age: Ints
    asked: int  # how many users were; some may have no entry

    @classmethod
    def at(
        cls, depth: Ints, straggler: Bools | None = None, asked: int | None = None
    ) -> "Arrivals":
        """Users of these depths on this round's model; who did not finish is a straggler."""
        return cls(
            depth,
            depth > 1 if straggler is None else straggler,
            np.zeros_like(depth),
            len(depth) if asked is None else asked,
        )

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.depth)

    def only(self, user: int) -> "Arrivals":
        """One of these users on its own."""
        one = slice(user, user + 1)
        return Arrivals(self.depth[one], self.straggler[one], self.age[one], self.asked)

    def reach(self, layers: int) -> Bools:
        """`reach[l - 1, u]`: whether user u is in U^l [ltUsers]."""
        return self.depth[None, :] <= np.arange(1, layers + 1)[:, None]


@dataclass(frozen=True)
class Closing:
    """What is known when a step closes. The arrays have an entry per layer."""

    users: int  # how many were asked
    reached: Ints  # how many users have a share in the layer: |U^l| for SALF
    shares: Floats  # the sum of these shares
    unreached: Floats  # p_l, the chance that nobody reaches the layer
