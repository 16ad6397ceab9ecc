"""Ways to live with stragglers, one file a method. Adding a method is adding a file."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping

from salf.errors import unknown
from salf.methods.base import Average, Group, Method, Plan, Round, Synchronous, make


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


def method(name: str, /, **options: object) -> Method:
    """The method of this name, with its options (`average`, and what it has of its own)."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return make(METHODS[name], options)


__all__ = ["METHODS", "Average", "Group", "Method", "Plan", "Round", "Synchronous", "method"]
