"""What a method asks for, seen by trying it, and that it keeps nothing but what it declares."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.core.rules import LocalRule

if TYPE_CHECKING:
    from torch import Tensor

    from salf.methods.base import Method
    from salf.worlds.base import World

USERS, LAYERS = 6, 3  # of the trial


@dataclass(frozen=True)
class Asks:
    """What a method reads of arrivals and closings, and which of a world's variants it is for."""

    read: frozenset[str] = frozenset()  # names of attributes of `Arrivals` and `Closing`
    cutoff: int | None = None  # of `Arrivals.interval`
    variants: frozenset[str] = frozenset()  # "waiting", "late", ...; "own" for a world of its own
    stands_in: bool = False  # whether remembered updates stand in for absent users

    @property
    def waits(self) -> bool:
        return "waiting" in self.variants

    @property
    def narrows(self) -> bool:
        return "narrowed" in self.variants

    @property
    def clock(self) -> bool:
        """Whether its rounds end by something else than a deadline, which takes a clock."""
        return bool(self.variants & {"buffered", "timely"})

    @property
    def deadline(self) -> bool:
        return not (self.waits or self.clock)

    @property
    def more_steps(self) -> bool:
        return "timely" in self.variants

    @property
    def chance(self) -> bool:
        """Whether users are weighed by their probabilities of reaching a layer."""
        return "chance" in self.read

    @property
    def reach(self) -> bool:
        """Whether weights depend on p_l or on these probabilities."""
        return bool(self.read & {"chance", "unreached"})

    @property
    def about_users(self) -> bool:
        """Whether weights depend on what is known of users from earlier rounds."""
        return self.chance or self.cutoff is not None

    @property
    def simulated_only(self) -> str:
        """Why the method cannot run live; "" if it can."""
        reasons = {
            "narrowed": "its stragglers train a narrower network",
            "timely": "its users are assigned work by their simulated times",
            "late": "its users deliver updates of older models",
            "buffered": "its users deliver updates of older models",
            "own": "it has a world of its own",
        }
        return next((why for name, why in reasons.items() if name in self.variants), "")


def asks_of(method: "Method") -> Asks:
    """Try a method on users of all depths, steps and ages, and note what it asks for."""
    _check_hooks(method)
    world, noted, watch = _World(), _Noted(), Watch(method)
    depth = np.array([1, 2, 3, 4, 1, 2])
    plain: dict[str, Any] = {
        "user": np.arange(USERS),
        "depth": depth,
        "straggler": depth > 1,
        "age": np.array([0, 0, 0, 0, 1, 0]),
        "weight": np.ones(USERS),
        "asked": USERS,
        "steps": np.array([2, 2, 2, 1, 2, 1]),
        "planned": np.full(USERS, 2),
        "chance": np.full((LAYERS, USERS), 0.5),
        "everybody": float(USERS),
        "round": 2,
        "server": _tried(method, lambda: tensors(method.server_state({}))) or {},
    }
    arrived = _Arrivals(**plain, noted=noted)
    layer = np.full(LAYERS, 2.0)
    closing = _Closing(
        users=USERS,
        reached=np.full(LAYERS, 2),
        shares=layer,
        unreached=layer / 8,
        present=layer,
        steps=layer,
        everybody=USERS,
        round=2,
        server=plain["server"],
        noted=noted,
    )
    noted.names.clear()  # of making them
    for trial in (
        lambda: method.share(arrived, LAYERS),
        lambda: method.widths(arrived),
        lambda: method.divisor(closing),
    ):
        _tried(method, trial)
    if _tried(method, lambda: method.world(cast("World", world))) is not world:
        world.variants.add("own")
    memory = method.memory()
    watch.check()
    return Asks(
        frozenset(noted.names),
        noted.cutoff,
        frozenset(world.variants),
        memory is not None and memory.stands_in,
    )


def _check_hooks(method: "Method") -> None:
    """Refuse hooks that would never be called."""
    from salf.methods.base import Method

    cls = type(method)
    needs = {"learned": "server_state", "heard": "server_state", "after": "user_state"}
    own = {
        name for name in (*needs, *needs.values()) if getattr(cls, name) is not vars(Method)[name]
    }
    for hook in needs.keys() & own:
        if (state := needs[hook]) not in own:
            raise SalfError(f"{cls.__name__} defines {hook}, which needs {state}: define both.")


def tensors(state: Any) -> "dict[str, Tensor]":
    """A state with its numbers as tensors."""
    if not len(state):
        return {}
    import torch

    def tensor(value: Any) -> "Tensor":
        if isinstance(value, torch.Tensor):
            return value.detach()
        return torch.tensor(value, dtype=torch.float64)

    return {str(name): tensor(value) for name, value in state.items()}


def _tried(method: "Method", trial: Any) -> Any:
    try:
        return trial()
    except FrozenInstanceError as error:
        raise keeps_itself(method, str(error).split("'")[1]) from None
    except Exception:  # whatever somebody else's method raises, it will raise in its run, too
        return None


@dataclass
class _Noted:
    names: set[str] = field(default_factory=set)
    cutoff: int | None = None


class _Noting:
    noted: _Noted

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "noted":
            self.noted.names.add(name)
        return super().__getattribute__(name)


@dataclass(frozen=True, eq=False)
class _Arrivals(_Noting, Arrivals):
    noted: _Noted = field(default_factory=_Noted, kw_only=True)

    def interval(self, cutoff: int) -> Floats:
        self.noted.cutoff = cutoff
        return np.ones((LAYERS, USERS))


@dataclass(frozen=True)
class _Closing(_Noting, Closing):
    noted: _Noted = field(default_factory=_Noted, kw_only=True)


class _World:
    """Notes which variants of a world a method asks for."""

    users, layers = USERS, LAYERS

    def __init__(self) -> None:
        self.variants: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def variant(*_: Any, **__: Any) -> _World:
            self.variants.add(name)
            return self

        return variant


# ---- what a method must not do ----------------------------------------------------------------

FIRST = 3  # rounds after which a method is looked at; later ever more rarely
_NO_STATE = (FunctionType, classmethod, staticmethod, property, cached_property)


class Watch:
    """The attributes of a method, or rule, of one's own, which must stay as they are."""

    def __init__(self, watched: "Method | LocalRule") -> None:
        self._watched, self._calls = watched, 0
        self._before = _attributes(watched)

    def check(self) -> None:
        """Refuse one that changed. Called after every round."""
        self._calls += 1
        if not self._before or (self._calls > FIRST and self._calls & (self._calls - 1)):
            return
        now = _attributes(self._watched)
        for name in self._before.keys() | now.keys():
            if self._before.get(name) != now.get(name):
                raise keeps_itself(self._watched, name)


def keeps_itself(watched: "Method | LocalRule", name: str) -> SalfError:
    """The way out for a method or a rule that writes to itself."""
    changes = f"{type(watched).__name__} changes its own {name!r}, which no checkpoint keeps"
    if isinstance(watched, LocalRule):
        return SalfError(
            f"{changes}: let the method return it from user_state(weights), its new value from "
            f"after(done), and read it as step.own[{name!r}]."
        )
    number = type(getattr(watched, name, None)) in (int, float)
    example = f", as {{{name!r}: 0}}" if number else ""
    return SalfError(
        f"{changes} and the next run would begin with: return it from server_state(weights)"
        f"{example}, its new value from learned(server, heard, closing), and read it as "
        f"arrived.server[{name!r}] in share and closing.server[{name!r}] in divisor; what belongs "
        "to one user goes into user_state(weights) and after(done)."
    )


def _attributes(watched: object) -> dict[str, Any]:
    """What could change, as bytes; nothing of what comes with salf."""
    own = [cls for cls in type(watched).__mro__ if not cls.__module__.startswith("salf.")]
    if len(own) < 2:  # object is one
        return {}
    found: dict[str, Any] = {}
    for cls in own[:-1]:
        found |= {n: v for n, v in vars(cls).items() if not isinstance(v, _NO_STATE)}
    classes = type(watched).__mro__
    cached = {n for cls in classes for n, v in vars(cls).items() if isinstance(v, cached_property)}
    found |= {name: value for name, value in vars(watched).items() if name not in cached}
    kept = {n: v for n, v in found.items() if not (n.startswith("__") or n.startswith("_abc"))}
    return {name: _frozen(value) for name, value in kept.items()}


def _frozen(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except Exception:  # whatever cannot be copied: a function in a field, say
        return id(value)
