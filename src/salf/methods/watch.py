"""Methods and local rules keep nothing but what they declare: no checkpoint would have it."""

import pickle
from functools import cached_property
from types import FunctionType
from typing import Any

from salf.common.errors import SalfError
from salf.core.rules import LocalRule

FIRST = 3  # rounds after which attributes are compared; later ever more rarely
_NO_STATE = (FunctionType, classmethod, staticmethod, property, cached_property)


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
