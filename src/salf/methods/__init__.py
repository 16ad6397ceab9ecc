"""The methods, one file each."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import TypeGuard

from salf.common import registry
from salf.common.errors import SalfError
from salf.methods.asks import Asks
from salf.methods.base import Average, Group, Method, Narrow, Recalled, RoundPlan, make


def _is_method(found: object) -> TypeGuard[type[Method]]:
    return inspect.isclass(found) and issubclass(found, Method)


# In each module the one class that is called like it.
METHODS: Mapping[str, type[Method]] = {
    cls.name: cls
    for module in pkgutil.iter_modules(__path__)
    for cls in vars(importlib.import_module(f"{__name__}.{module.name}")).values()
    if _is_method(cls) and cls.name.replace("-", "_") == module.name
}
_OBJECTS: dict[str, Method] = {}  # of this process, by the name they are shown with
GROUP = "salf.methods"  # of entry points, for packages that bring methods


def find(name: str) -> type[Method]:
    """The class of a method: by its name, or by import path (`package.module:Name`)."""
    if name in _OBJECTS:
        return type(_OBJECTS[name])
    cls = registry.find("method", name, METHODS, GROUP)
    if not _is_method(cls):
        raise SalfError(f"the method {name!r} must be a class derived from salf.Method.")
    return cls


def asks(name: str) -> Asks:
    """What the method of this name asks for; its options stay as they are by default."""
    if name in _OBJECTS:
        return _OBJECTS[name].asks
    try:
        return find(name)().asks
    except (TypeError, registry.Untrusted):  # options without a default; somebody's code
        return Asks()


def method(name: str, /, **options: object) -> Method:
    """The method of this name or import path, with its options."""
    return make(find(name), options)


def named(method: Method) -> str:
    """A name for a method object, by which this process finds its class: `AsyncFL(delay=4)`."""
    changed = [
        f"{option.name}={getattr(method, option.name)!r}"
        for option in fields(method)
        if getattr(method, option.name) != option.default
    ]
    name = type(method).__name__ + (f"({', '.join(changed)})" if changed else "")
    known, ours = type(_OBJECTS.get(name, method)), type(method)
    if (known.__module__, known.__qualname__) != (ours.__module__, ours.__qualname__):
        raise SalfError(f"there are two methods called {name}: rename one of the classes.")
    if known is not ours or name not in _OBJECTS:  # a class may be defined anew in a notebook
        _OBJECTS[name] = method
    return name


def to_wire(method: Method) -> str:
    """A method and its options for its users; "" if they need not know it."""
    if not method.defines("local_rule", "gradients", "user_state"):
        return ""
    options = {option.name: getattr(method, option.name) for option in fields(method)}
    return json.dumps({"name": method.name, "options": options})


def from_wire(text: str) -> Method:
    """The method a server names, if this user has it by name: nothing is imported for a server."""
    try:
        about = json.loads(text)
        name, options = str(about["name"]), dict(about["options"])
    except (ValueError, KeyError, TypeError):
        raise SalfError("the server's method cannot be read: update salf.") from None
    if name not in METHODS and name not in entry_points(group=GROUP).names:
        raise SalfError(
            f"the server's method, {name!r}, changes local steps and is not installed here: pass "
            "it as method=..., the object that the server has."
        )
    return make(find(name), options)


__all__ = [
    "METHODS", "Asks", "Average", "Group", "Method", "Narrow", "Recalled", "RoundPlan", "asks",
    "find", "from_wire", "method", "named", "to_wire",
]  # fmt: skip
