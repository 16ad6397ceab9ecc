"""Who arrived at a step of the server, and how far: what a world makes and a method weighs."""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from salf.common.errors import SalfError
from salf.core.rules import State

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Spent:
    """The time, work and bytes of a step by the simulated clock."""

    seconds: float
    clock: float  # at the end of the step, since the start
    waited: Floats  # seconds each user was done and the step was not
    work: Floats  # multiply-adds each user did
    counted: Floats  # those of them that what it delivered is made of
    bytes: Floats  # of its download and upload


_DEFAULT: Any = None  # of a field that `Arrivals` fills in


@dataclass(frozen=True)
class Arrivals:
    """The users of one step. Every array has an entry per user.

    A depth d in {1..L+1} means that the gradients of layers d..L arrived: all of them for d = 1,
    none for d = L + 1. In the paper's mixture, a straggler's depth may be 1, so `straggler` is not
    the same as `depth > 1`. `age` is the age in rounds of the model that the user computed on; this
    round's model has age 0. With several local steps, `depth` is that of the last step started,
    which is number `steps` of `planned`; earlier steps are complete.

    By default users are 0, 1, ... and count equally; those that did not finish are stragglers, and
    all have computed one local step on this round's model.
    """

    depth: Ints
    straggler: Bools = _DEFAULT
    asked: int = _DEFAULT  # how many users were; some may have no entry
    _: KW_ONLY
    user: Ints = _DEFAULT  # their numbers among all users, from 0
    age: Ints = _DEFAULT
    weight: Floats = _DEFAULT  # how much each counts; all 1 if they count equally
    steps: Ints = _DEFAULT
    planned: Ints = _DEFAULT
    spent: Spent | None = None  # where there is a clock
    # Where the method asks for it, [L, users]: the chance that each user takes part in a layer, and
    # the mean length of the intervals in which it did; and the weight of all users, asked or not.
    chances: Floats | None = None
    intervals: Floats | None = None
    everybody: float | None = None
    round: int = 0  # the number of the step
    server: State = field(default_factory=dict)  # the method's state, if it has any

    def __post_init__(self) -> None:
        users, once = len(self.depth), np.ones_like(self.depth)
        given = {"asked": users, "user": np.arange(users), "weight": np.ones(users)}
        given |= {"age": np.zeros_like(once), "steps": once, "planned": once}
        missing = {name for name, value in vars(self).items() if value is None}
        for name in given.keys() & missing:
            object.__setattr__(self, name, given[name])
        if "straggler" in missing:
            object.__setattr__(self, "straggler", ~self.finished)

    @property
    def users(self) -> int:
        return len(self.depth)

    @property
    def asked_weight(self) -> float:
        """The weight of all users asked; users without an entry count like the others."""
        if not self.users:
            return float(self.asked)
        return self.asked * float(self.weight.sum() / self.users)

    def only(self, user: int) -> "Arrivals":
        """The entry of one of these users on its own."""
        arrays: dict[str, Any] = {n: v for n, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, **{n: each[..., [user]] for n, each in arrays.items()})

    @property
    def chance(self) -> Floats:
        """The probability that each user takes part in a layer, [L, users]."""
        return _known(self.chances)

    def interval(self, cutoff: int) -> Floats:
        """The mean length of the intervals in which each user took part, [L, users].

        An interval ends after `cutoff` rounds at the latest, also without the user.
        """
        return _known(self.intervals)

    @property
    def finished(self) -> Bools:
        """Whether each user completed all layers of all local steps."""
        return np.asarray((self.depth == 1) & (self.steps == self.planned))

    def mean_reach(self, layers: int) -> float:
        """The share of their layers that users reached, on average; of those asked."""
        return float(self.reach(layers).sum()) / (layers * self.asked) if self.asked else 0.0

    def gradients(self, layers: int) -> Ints:
        """`gradients[l - 1, u]`: how many local steps' gradients user u has of layer l."""
        return np.asarray(self.steps - 1 + (self.depth <= np.arange(1, layers + 1)[:, None]))

    def reach(self, layers: int) -> Bools:
        """`reach[l - 1, u]`: whether user u is in U^l [ltUsers]."""
        return np.asarray(self.gradients(layers) > 0)


@dataclass(frozen=True)
class Closing:
    """The sums of a step when it closes. The arrays have an entry per layer."""

    users: float  # the weight of all users asked: how many, if they count equally
    reached: Ints  # how many users have a share in the layer: |U^l| for SALF
    shares: Floats  # the sum of these shares, each times its user's weight
    unreached: Floats  # p_l, the chance that nobody reaches the layer
    present: Floats  # the sum of the weights of the users with a share: `reached` if all are 1
    steps: Floats  # the weighted mean of these users' local steps that have the layer; else 1
    everybody: float = 0.0  # the weight of all users, asked or not, where the method asks for it
    round: int = 0  # the number of the step
    server: State = field(default_factory=dict)  # the method's state, if it has any

    @property
    def asked(self) -> Floats:
        return np.full(len(self.shares), float(self.users))

    @property
    def weight(self) -> Floats:
        """The sum of the shares, to divide by: 1 in a layer in which nobody has one."""
        return np.where(self.shares > 0, self.shares, 1.0)


def _known(values: Floats | None) -> Floats:
    if values is None:
        raise SalfError(
            "arrived.chance and arrived.interval are known to methods that use them in every round."
        )
    return values


def evenly(users: Ints, most: int) -> Ints:
    """All users, or of many some, evenly spaced."""
    if len(users) <= most:
        return users
    return users[np.unique(np.linspace(0, len(users) - 1, most).astype(np.int64))]
