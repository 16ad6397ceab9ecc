"""What a method is: a rule that turns this round's depths into weights c[l, u].

The step of layer l is -eta * sum_u c[l, u] g_u^l. Whoever computes the gradients only needs c,
and for the methods that do not fit one matrix, which model each group of users was given and at
which width they train it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import ClassVar, Literal, get_args

import numpy as np

from salf.depth import DepthDistribution, Depths, Floats, Ints
from salf.errors import SalfError, unknown

Average = Literal["reached", "all"]


@dataclass(frozen=True)
class Group:
    """Users who compute on the same network: one version of the model, one width."""

    users: Ints
    weights: Floats  # c[l - 1, i] is the weight of users[i] in layer l
    given: int  # the round whose model they were given
    width: float = 1.0

    @classmethod
    def of(cls, weights: Floats, given: int, width: float = 1.0) -> "Group":
        """From a matrix over all users; those with no weight in any layer compute nothing."""
        users = np.flatnonzero(weights.any(axis=0))
        return cls(users, weights[:, users], given, width)


@dataclass(frozen=True)
class Plan:
    """One round: who computes what, and how it is put together.

    With `entrywise`, the weights are counts and each entry of a parameter is averaged over the
    users whose network holds it. With `average_models`, users on older models contribute those
    models themselves, not only the difference they made to them.
    """

    groups: tuple[Group, ...]
    entrywise: bool = False
    average_models: bool = False

    def total_weights(self) -> Floats:
        """sum_u c[l, u], for l = 1..L."""
        return np.asarray(sum(group.weights.sum(axis=1) for group in self.groups))


@dataclass(frozen=True)
class Round:
    """What a method may look at when it plans round t."""

    t: int
    depth: DepthDistribution
    unreached: Floats  # p_l
    rng: np.random.Generator


@dataclass(frozen=True)
class Method(ABC):
    """A way to live with stragglers.

    `average`: over the users that reached a layer, as the equations say, or over all users, as
    the authors' script does.
    """

    average: Average = field(default="reached", kw_only=True)

    name: ClassVar[str]
    waits: ClassVar[bool] = False  # whether it ignores the deadline, so that depths do not matter

    def __post_init__(self) -> None:
        if self.average not in get_args(Average):
            raise unknown("average", self.average, get_args(Average))

    def start(self, users: int) -> Ints:
        """What the method remembers between rounds: one integer array, empty if nothing."""
        return np.empty(0, np.int64)

    def models_in_use(self, memory: Ints) -> set[int]:
        """The rounds whose models some user is still computing on."""
        return set()

    @abstractmethod
    def plan(self, round: Round, memory: Ints) -> tuple[Plan, Ints]:
        """Decide round t, and what to remember after it."""


@dataclass(frozen=True)
class Synchronous(Method):
    """A method that is one matrix: every user computes on this round's model."""

    @abstractmethod
    def weights(self, depths: Depths, unreached: Floats) -> Floats:
        """c[l, u] from this round's depths and p_l."""

    def plan(self, round: Round, memory: Ints) -> tuple[Plan, Ints]:
        """Draw the depths, weigh the users."""
        depths = round.depth.draw(round.rng)
        weights = self.weights(depths, round.unreached)
        return Plan((Group.of(weights, round.t),)), memory


def make(cls: type[Method], options: dict[str, object]) -> Method:
    """Build a method from options by name, refusing those it does not have."""
    known = {option.name.replace("_", "-"): option.name for option in fields(cls)}
    defaults = {option.name: option.default for option in fields(cls)}
    for name, value in options.items():
        if name not in known:
            own = [option for option in known if option != "average"]
            raise unknown(f"option of {cls.name}", name, own or ["none"])
        _check_type(cls.name, name, value, defaults[known[name]])
    return cls(**{known[name]: value for name, value in options.items()})  # type: ignore[arg-type]


def _check_type(method: str, name: str, value: object, default: object) -> None:
    allowed = (float, int) if isinstance(default, float) else (type(default),)
    right = isinstance(value, allowed) and not isinstance(value, bool)
    if not right or (isinstance(value, float) and not isfinite(value)):
        kinds = " or ".join(kind.__name__ for kind in allowed)
        raise SalfError(f"the option {name} of {method} must be of type {kinds}, not {value!r}.")
