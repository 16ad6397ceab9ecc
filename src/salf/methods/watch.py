"""Sees that a method keeps nothing in itself: what it keeps is what it declares."""

import pickle
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from salf.common.errors import SalfError

if TYPE_CHECKING:
    from salf.methods.base import Method

FIRST = 3  # rounds after which a method is looked at; later ever more rarely
_NO_STATE = (FunctionType, classmethod, staticmethod, property, cached_property)


class Watch:
    """The attributes of a method of one's own, which must stay as they are."""

    def __init__(self, method: "Method") -> None:
        self._method, self._calls = method, 0
        self._before = _attributes(method)

    def check(self) -> None:
        """Refuse a method that changed. Called after every round."""
        self._calls += 1
        if not self._before or (self._calls > FIRST and self._calls & (self._calls - 1)):
            return
        now = _attributes(self._method)
        for name in self._before.keys() | now.keys():
            if self._before.get(name) != now.get(name):
                raise keeps_itself(self._method, name)


def keeps_itself(method: "Method", name: str) -> SalfError:
    """The way out for a method that writes to itself."""
    return SalfError(
        f"{type(method).__name__} changes its own {name!r}, which no checkpoint keeps and the next "
        f"run would begin with: return it from server_state(weights), as {{{name!r}: 0}}, its new "
        f"value from learned(server, heard, closing), and read it as closing.server[{name!r}]."
    )


def _attributes(method: "Method") -> dict[str, Any]:
    """What could change, as bytes; nothing of methods that come with salf."""
    found: dict[str, Any] = {}
    own = [cls for cls in type(method).__mro__ if not cls.__module__.startswith("salf.")]
    if len(own) < 2:  # object is one
        return found
    for cls in own[:-1]:
        found |= {n: v for n, v in vars(cls).items() if not isinstance(v, _NO_STATE)}
    classes = type(method).__mro__
    cached = {n for cls in classes for n, v in vars(cls).items() if isinstance(v, cached_property)}
    found |= {name: value for name, value in vars(method).items() if name not in cached}
    kept = {n: v for n, v in found.items() if not (n.startswith("__") or n.startswith("_abc"))}
    return {name: _frozen(value) for name, value in kept.items()}


def _frozen(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except Exception:  # whatever cannot be copied: a function in a field, say
        return id(value)
