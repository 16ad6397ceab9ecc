"""What a method asks for, seen by trying it; and that it keeps nothing but what it declares.

No checkpoint would have what a method, or a local rule, keeps of its own.
"""

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.core.rules import LocalRule

if TYPE_CHECKING:
    from salf.methods.base import Method

USERS, LAYERS = 6, 3  # of the trial
NEEDED = {"learned": "server_state", "heard": "server_state", "after": "user_state"}
SIMULATED_ONLY = {
    "narrowed": "its stragglers train a narrower network",
    "timely": "its users are assigned work by their simulated times",
    "late": "its users deliver updates of older models",
    "buffered": "its users deliver updates of older models",
    "own": "it has a world of its own",
}
FIRST = 3  # rounds after which attributes are compared; later ever more rarely
_NO_STATE = (FunctionType, classmethod, staticmethod, property, cached_property)


@dataclass(frozen=True)
class Asks:
    """What a method reads of arrivals and closings, and which of a world's variants it is for.

    What a method reads in some rounds only may be missing. It is told so when it reads it.
    """

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
    def chance(self) -> bool:
        """Whether users are weighed by their probabilities of reaching a layer."""
        return "chance" in self.read

    @property
    def about_users(self) -> bool:
        """Whether weights depend on what is known of users from earlier rounds."""
        return self.chance or self.cutoff is not None

    @property
    def simulated_only(self) -> str:
        """Why the method cannot run live; "" if it can."""
        return next((why for name, why in SIMULATED_ONLY.items() if name in self.variants), "")


def asks_of(method: "Method") -> Asks:
    """Try a method on users of all depths, steps and ages, and note what it asks for."""
    from salf.methods.base import state_of

    for hook, needed in NEEDED.items():
        if method.defines(hook) and not method.defines(needed):
            name = type(method).__name__
            raise SalfError(f"{name} defines {hook}, which needs {needed}: define both.")
    read, cutoffs, variants = set[str](), list[int](), set[str]()

    def interval(cutoff: int) -> Floats:
        cutoffs.append(cutoff)
        return np.ones((LAYERS, USERS))

    def tried(trial: Callable[[], Any]) -> Any:
        try:
            return trial()
        except FrozenInstanceError as error:
            raise keeps_itself(method, str(error).split("'")[1]) from None
        except Exception:  # whatever somebody else's method raises, it will raise in its run, too
            return None

    state = tried(lambda: state_of(method, "server_state", method.server_state({}))) or {}
    arrived = Arrivals(
        np.array([1, 2, 3, 4, 1, 2]),
        age=np.array([0, 0, 0, 0, 1, 0]),
        steps=np.array([2, 2, 2, 1, 2, 1]),
        planned=np.full(USERS, 2),
        chances=np.full((LAYERS, USERS), 0.5),
        everybody=float(USERS),
        round=2,
        server=state,
    )
    two = np.full(LAYERS, 2.0)
    closing = Closing(USERS, np.full(LAYERS, 2), two, two / 8, two, two, USERS, 2, state)
    arrived, closing = _noting(arrived, read, interval=interval), _noting(closing, read)
    tried(lambda: method.share(arrived, LAYERS))
    tried(lambda: method.widths(arrived))
    tried(lambda: method.divisor(closing))
    world: Any = _World(variants)
    if tried(lambda: method.world(world)) is not world:
        variants.add("own")
    memory = method.memory()
    stands_in = memory is not None and memory.stands_in
    return Asks(frozenset(read), next(iter(cutoffs), None), frozenset(variants), stands_in)


def _noting(seen: Any, read: set[str], **own: Any) -> Any:
    """A copy that notes the names of what is read of it; `own` are attributes of its own."""

    def note(self: object, name: str) -> Any:
        read.add(name)
        return own[name] if name in own else object.__getattribute__(self, name)

    noting: Any = object.__new__(
        type(type(seen).__name__, (type(seen),), {"__getattribute__": note})
    )
    object.__getattribute__(noting, "__dict__").update(vars(seen))
    return noting


class _World:
    """Notes which variants of a world a method asks for."""

    users, layers = USERS, LAYERS

    def __init__(self, variants: set[str]) -> None:
        self._variants = variants

    def __getattr__(self, name: str) -> Any:
        self._variants.add(name)
        return lambda *_, **__: self


class Watch:
    """The attributes of a method, or rule, of one's own, which must stay as they are."""

    def __init__(self, watched: object) -> None:
        self._watched, self._calls = watched, 0
        self._before = _attributes(watched)

    def check(self) -> None:
        """Refuse one that changed. Called after every round."""
        self._calls += 1
        if self._calls > FIRST and self._calls & (self._calls - 1):
            return
        now = _attributes(self._watched)
        for name in self._before.keys() | now.keys():
            if self._before.get(name) != now.get(name):
                raise keeps_itself(self._watched, name)


def keeps_itself(watched: object, name: str) -> SalfError:
    """The way out for a method or a rule that writes to itself."""
    changes = f"{type(watched).__name__} changes its own {name!r}, which no checkpoint keeps"
    if isinstance(watched, LocalRule):
        return SalfError(
            f"{changes}: let the method return it from user_state(weights), its new value from "
            f"after(done), and read it as step.own[{name!r}]."
        )
    return SalfError(
        f"{changes} and the next run would begin with: return it from server_state(weights), as "
        f"{{{name!r}: 0}}, its new value from learned(server, heard, closing), and read it as "
        f"arrived.server[{name!r}] in share and closing.server[{name!r}] in divisor; what belongs "
        "to one user goes into user_state(weights) and after(done)."
    )


def _attributes(watched: object) -> dict[str, bytes | int]:
    """What could change of an object and its classes, as bytes; nothing of what is salf's."""
    classes = type(watched).__mro__[:-1]
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("salf", "abc")]
    if not own:
        return {}
    found = {n: v for cls in own for n, v in vars(cls).items() if not isinstance(v, _NO_STATE)}
    cached = {n for cls in classes for n, v in vars(cls).items() if isinstance(v, cached_property)}
    found |= {name: value for name, value in vars(watched).items() if name not in cached}
    return {n: _frozen(v) for n, v in found.items() if not n.startswith(("__", "_abc"))}


def _frozen(value: Any) -> bytes | int:
    try:
        return pickle.dumps(value)
    except Exception:  # whatever cannot be copied: a function in a field, say
        return id(value)
