"""The methods, one file each."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import fields

from salf.common import registry
from salf.common.errors import SalfError
from salf.methods.base import Average, Group, Method, Plan, Recalled, make


def _discover() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            here = cls.__module__ == module.__name__  # not imported from another method's file
            if here and issubclass(cls, Method) and not inspect.isabstract(cls):
                found[cls.name] = cls
    return found


METHODS: Mapping[str, type[Method]] = _discover()
_OBJECTS: dict[
    str, type[Method]
] = {}  # of objects of this process, by the name they are shown with
GROUP = "salf.methods"  # of entry points, for packages that bring methods


def find(name: str) -> type[Method]:
    """The class of a method: by its name, or by import path (`package.module:Name`)."""
    if name in _OBJECTS:
        return _OBJECTS[name]
    cls = registry.find("method", name, METHODS, GROUP)
    if not (inspect.isclass(cls) and issubclass(cls, Method)) or inspect.isabstract(cls):
        raise SalfError(f"the method {name!r} must be a class derived from salf.Method.")
    return cls


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
    if _OBJECTS.setdefault(name, type(method)) is not type(method):
        raise SalfError(f"there are two methods called {name}: rename one of the classes.")
    return name


__all__ = ["METHODS", "Average", "Group", "Method", "Plan", "Recalled", "find", "method", "named"]
