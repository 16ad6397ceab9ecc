"""What a method is: a rule that turns who arrived, and how far, into weights c[l, u].

The step of layer l is -eta * sum_u c[l, u] g_u^l, with c[l, u] = share[l, u] / divisor[l]. With
several local steps g_u^l is the sum of the user's gradients. A share is known when its user
arrives, a divisor when the step closes: so a server that gets one update at a time needs no more
than sums, and the simulator and the live server run the same methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

import numpy as np

from salf.common.errors import SalfError, in_one_line, unknown
from salf.common.registry import converted, within
from salf.core.arrivals import Arrivals, Closing, Floats, Ints
from salf.core.rules import Done, LocalRule, State, Tensors
from salf.core.server import SGD, Optimiser
from salf.methods.asks import Asks, asks_of
from salf.worlds.base import World

if TYPE_CHECKING:
    from torch import Tensor

Average = Literal["reached", "all"]
Keeper = Literal["device", "server"]


@dataclass(frozen=True)
class Group:
    """Users who compute alike: on one version of the model, of one width, with as many rows."""

    users: Ints  # their numbers
    weights: Floats  # c[l - 1, i] is the weight of users[i] in layer l
    given: int  # the round whose model they were given
    width: float = 1.0
    rows: int = 0  # of each user's batch; 0 if all users of all groups have as many
    # How many local steps' gradients users[i] has of layer l; one of each layer with weight.
    gradients: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        if not self.gradients.size:
            object.__setattr__(self, "gradients", (self.weights > 0).astype(np.int64))

    @property
    def steps(self) -> Ints:
        """The local steps of each user."""
        return np.asarray(self.gradients.max(axis=0))

    @property
    def depth(self) -> Ints:
        """The depth at which each user's last local step stops."""
        return np.asarray(1 + np.argmax(self.gradients == self.steps, axis=0))

    def of_columns(self, some: Ints) -> "Group":
        """Some of the users."""
        weights, gradients = self.weights[:, some], self.gradients[:, some]
        return replace(self, users=self.users[some], weights=weights, gradients=gradients)


@dataclass(frozen=True)
class Narrow:
    """How networks narrower than the full one are cut out of it, and averaged."""

    shift: int = 0  # the unit of hidden layers at which they begin
    entrywise: bool = False  # each entry is averaged over the users whose network holds it


@dataclass(frozen=True)
class RoundPlan:
    """One round: who computes what, and how it is put together.

    With `average_models`, users on older models contribute those models themselves, not only the
    difference they made to them.
    """

    groups: tuple[Group, ...]
    closing: Closing | None = None  # what is known when the round closes
    narrow: Narrow = field(default_factory=Narrow)
    average_models: bool = False

    def total_weights(self) -> Floats:
        """sum_u c[l, u], for l = 1..L."""
        return np.asarray(sum(group.weights.sum(axis=1) for group in self.groups))


@dataclass(frozen=True)
class Recalled:
    """What the server remembers of users' last updates, and how it is used."""

    beta: float  # how much of it enters a step
    fade: float | None  # rounds after which it counts half; None if it does not fade
    users: int  # that are remembered at most
    # Whether what absent users sent last counts like what arrives, so far as it has not faded; if
    # not, what arrives is compared with what is remembered.
    stands_in: bool = False


def limited(default: Any, **limits: float) -> Any:
    """A field of a method, and what it must be: `least`, `most`, `above` or several of these."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Method:
    """A rule that turns the arrivals of a round into weights of the users' updates.

    Its fields are its options.
    """

    name: ClassVar[str] = ""  # that of the class in lower case, unless it says otherwise
    users_keep: ClassVar[Keeper] = "server"  # live, where the users' states are

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for option in fields(self):
            name = option.name.replace("_", "-")
            what = name if name == "average" else f"the option {name} of {self.name}"
            value = converted(getattr(self, option.name), kinds[option.name], what)
            object.__setattr__(self, option.name, within(value, option.metadata, what))

    @cached_property
    def asks(self) -> Asks:
        """What the method reads, and which world it is for."""
        return asks_of(self)

    def defines(self, *hooks: str) -> bool:
        """Whether the method has one of these hooks of its own."""
        return any(getattr(type(self), hook) is not getattr(Method, hook) for hook in hooks)

    # ---- what a method may define ---------------------------------------------------------------

    def divisor(self, closing: Closing) -> Floats:
        """What the sum of the weighed gradients is divided by, for each layer.

        By default the sum of the shares, which makes the step a mean over who takes part.
        """
        return closing.weight

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """The share of every user in every layer, [L, users]; 1 in the layers it takes part in.

        A share must depend only on its own user's entry, because live users arrive one at a time.
        """
        return (self.gradients(arrived, layers) > 0).astype(np.float64)

    def gradients(self, arrived: Arrivals, layers: int) -> Ints:
        """How many local steps' gradients of every layer count, for every user: [L, users].

        A user takes part in a layer of which some do.
        """
        return arrived.gradients(layers)

    def local_rule(self, steps: int) -> LocalRule | None:
        """How users' local steps are changed, if they do at most so many; None if not at all."""
        return None

    def server_state(self, weights: Tensors) -> State:
        """What the server keeps between rounds, at the start; `weights` are what is trained.

        `share` and `divisor` find it in `arrived.server` and `closing.server`, a local rule in
        `step.server`.
        """
        return {}

    def user_state(self, weights: Tensors) -> State:
        """What is kept of a user, before it takes part for the first time."""
        return {}

    def after(self, done: Done) -> State:
        """What of a user's state is new after its round; the rest stays."""
        return {}

    def heard(self, done: Done) -> State:
        """What the server sums over the updates it uses, each with its user's weight."""
        return {}

    def learned(self, server: State, heard: State, closing: Closing) -> State:
        """What of the server's state is new after a round; `heard` is the sum over its users."""
        return {}

    def step(self, step: Tensors, server: State, rate: float) -> Tensors:
        """The step of the layers that were reached, in units of the users' `rate`."""
        return step

    def memory(self) -> Recalled | None:
        """What is remembered of users' last updates; None for nothing."""
        return None

    def world(self, world: World) -> World:
        """How the users of a world behave under this method."""
        return world

    def widths(self, arrived: Arrivals) -> Floats:
        """The share of every hidden layer that each user trains."""
        return np.ones(arrived.users)

    def narrow(self, t: int) -> Narrow:
        """How the networks of `widths` are parts of the full one, in round t."""
        return Narrow()

    @property
    def average_models(self) -> bool:
        """Whether users on older models contribute those models, not only their differences."""
        return False

    def refuses(self, optimiser: Optimiser) -> str:
        """Why this cannot be the server's optimiser; "" if it can."""
        if not self.average_models:
            return ""
        return "" if isinstance(optimiser, SGD) else "averages old models, which needs server 'sgd'"

    # ---- what follows from it -------------------------------------------------------------------

    def takes_whole_steps(self, layers: int) -> bool:
        """Whether layers of a further step that was stopped do not count."""
        stopped = Arrivals(np.array([2]), steps=np.array([2]), planned=np.array([2]))
        return layers > 1 and int(self.gradients(stopped, layers).max()) == 1

    def weights(self, arrived: Arrivals, unreached: Floats) -> Floats:
        """c[l, u] of a step whose arrivals and p_l are known."""
        return self._weighed(arrived, unreached)[0]

    def _weighed(self, arrived: Arrivals, unreached: Floats) -> tuple[Floats, Closing]:
        """c[l, u], and what is known when the step closes."""
        layers = len(unreached)
        share = self.checked_share(arrived, layers)
        heard, share = share > 0, share * arrived.weight
        asked, present = arrived.asked_weight, heard @ arrived.weight
        steps = np.ones(layers)
        if arrived.users and arrived.steps.max() > 1:
            counted = (heard * self.gradients(arrived, layers)) @ arrived.weight
            steps = mean_steps(counted, present)
        closing = Closing(
            users=asked,
            reached=heard.sum(axis=1),
            shares=share.sum(axis=1),
            unreached=unreached,
            present=present,
            steps=steps,
            everybody=asked if arrived.everybody is None else arrived.everybody,
            round=arrived.round,
            server=arrived.server,
        )
        return np.asarray(share / self.checked_divisor(closing)[:, None]), closing

    def plan(
        self, t: int, arrived: Arrivals, unreached: Floats, rows: Ints | None = None
    ) -> RoundPlan:
        """Round t for an engine: users grouped by their network and the `rows` of their batches.

        Users with no weight in any layer compute nothing.
        """
        weights, closing = self._weighed(arrived, unreached)
        gradients = np.where(weights > 0, self.gradients(arrived, len(unreached)), 0)
        rows = np.zeros(arrived.users, np.int64) if rows is None else rows
        takes_part = weights.max(axis=0) > 0
        # The oldest models first, of these the full ones, of these those with most rows.
        networks = np.stack([t - arrived.age, -self.widths(arrived), -rows])
        kinds, which = networks[:, :1], np.zeros(arrived.users, np.int64)
        if (networks != kinds).any():
            kinds, which = np.unique(networks, axis=1, return_inverse=True)
        groups = []
        for kind, (given, width, count) in enumerate(kinds.T.tolist()):
            here = takes_part & (which == kind)
            if here.any():
                some = slice(None) if here.all() else np.flatnonzero(here)
                users, c, g = arrived.user[some], weights[:, some], gradients[:, some]
                groups.append(Group(users, c, int(given), -width, -int(count), g))
        return RoundPlan(tuple(groups), closing, self.narrow(t), self.average_models)

    def checked_share(self, arrived: Arrivals, layers: int) -> Floats:
        """`share`, or an error that says what is wrong with it."""
        share = np.asarray(self.share(arrived, layers), np.float64)
        if not self.defines("share", "gradients"):
            return share
        self._check("share", share, (layers, arrived.users), share >= 0)
        if share[~arrived.reach(layers)].any():
            raise SalfError(f"{type(self).__name__}.share must be 0 in layers not reached.")
        return share

    def check_shares_are_own(self, layers: int, server: State | None = None) -> None:
        """Reject shares that depend on other users: live users arrive one at a time."""
        # One user of each depth, in the first of two local steps and in the last.
        depths, steps = np.tile(np.arange(1, layers + 2), 2), np.repeat([1, 2], layers + 1)
        arrived = Arrivals(depths, steps=steps, planned=np.full_like(steps, 2))
        chance = np.tile(np.linspace(0.1, 1, arrived.users), (layers, 1))
        arrived = replace(
            arrived, chances=chance, intervals=1 / chance, round=1, server=server or {}
        )
        together = self.checked_share(arrived, layers)
        each = (self.checked_share(arrived.only(user), layers) for user in range(arrived.users))
        if not np.allclose(np.hstack(list(each)), together):
            raise SalfError(
                f"{type(self).__name__}.share must depend on each user's own entry only; "
                "compute what depends on the other users in divisor."
            )

    def checked_divisor(self, closing: Closing) -> Floats:
        """`divisor`, or an error that says what is wrong with it."""
        divisor = np.asarray(self.divisor(closing), np.float64)
        self._check("divisor", divisor, closing.shares.shape, divisor > 0)
        return divisor

    def _check(self, what: str, values: Floats, shape: tuple[int, ...], right: np.ndarray) -> None:
        must = f"{type(self).__name__}.{what} must return"
        if values.shape != shape:
            raise SalfError(f"{must} an array of shape {shape}, not {values.shape}.")
        if not (right & np.isfinite(values)).all():
            allowed = "finite and at least 0" if what == "share" else "finite and positive"
            raise SalfError(f"{must} {allowed} numbers.")


@dataclass(frozen=True)
class Averaging(Method):
    """A method with the choice of its mean: over the users that take part, or over all of them.

    "reached" is what the equations say, "all" what the authors' script does.
    """

    average: Average = field(default="reached", kw_only=True)

    def divisor(self, closing: Closing) -> Floats:
        """The sum of the shares, or the number of users asked."""
        return closing.asked if self.average == "all" else closing.weight


def state_of(method: Method, hook: str, state: Any) -> "dict[str, Tensor]":
    """A state that a method returned: tensors by name, and numbers made tensors."""
    try:
        if not len(state):
            return {}
        import torch

        return {
            str(name): value.detach()
            if isinstance(value, torch.Tensor)
            else torch.tensor(value, dtype=torch.float64)
            for name, value in state.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise SalfError(
            f"{type(method).__name__}.{hook} must return a dict of tensors and numbers by name."
        ) from None


def mean_steps(steps: Floats, present: Floats) -> Floats:
    """The mean of local steps from their weighted sum; 1 in a layer in which nobody has any."""
    return np.where(present > 0, steps / np.where(present > 0, present, 1.0), 1.0)


def make(cls: type[Method], options: Mapping[str, object]) -> Method:
    """Build a method from options by name, refusing those it does not have."""
    known = [option.name for option in fields(cls)]
    given = {name.replace("-", "_"): value for name, value in options.items()}
    if "average" not in known and (average := given.pop("average", "reached")) != "reached":
        raise SalfError(
            f"{cls.name} defines its own average: average must be 'reached', not {average!r}."
        )
    for name in given:
        if name not in known:
            own = [option.replace("_", "-") for option in known if option != "average"]
            raise unknown(f"option of {cls.name}", name.replace("_", "-"), own)
    try:
        return cls(**given)
    except TypeError as error:
        raise SalfError(
            f"{cls.__name__} cannot be made from its options ({in_one_line(error)}): these are the "
            "fields of a @dataclass(frozen=True) without an __init__ of its own."
        ) from error
