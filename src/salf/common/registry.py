"""Things known by name: those that come with salf, those that a package brings, and your own.

Wherever a name is taken (a method, data set, model, depth or engine) an import path is taken too:
`package.module:Name`, also of a file in the current folder. A package adds a name of its own by an
entry point of the group `salf.methods`, `salf.data`, `salf.models`, `salf.depths` or
`salf.engines`.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from salf.common.errors import SalfError, in_one_line, unknown

PATH = "package.module:Name"  # how an import path is written


def is_path(name: str) -> bool:
    """Tell an import path from, say, `dirichlet:0.1`."""
    parts = name.replace(":", ".").split(".")
    return name.count(":") == 1 and all(part.isidentifier() for part in parts if part)


def find(kind: str, name: str, known: Mapping[str, Any], group: str) -> Any:
    """Look `name` up: in `known`, in the entry points of packages, or as an import path."""
    if name in known:
        return known[name]
    brought = {point.name: point for point in entry_points(group=group)}
    if name in brought:
        try:
            return brought[name].load()
        except Exception as error:  # whatever somebody else's package raises
            raise SalfError(
                f"cannot load the {kind} {name!r} from {brought[name].value}: {in_one_line(error)}."
            ) from error
    if is_path(name):
        return import_path(kind, name)
    raise unknown(kind, name, [*known, *brought, PATH])


def import_path(kind: str, path: str) -> Any:
    """Import `package.module:Name`; like `python -m`, from the current folder too."""
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever somebody else's module raises
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{error.name}."
        )
        where = " in the current folder or on the Python path" if missing else ""
        reason = f"{in_one_line(error)}{where}"
        raise SalfError(f"cannot import the {kind} {path!r}: {reason}.") from None
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = [n for n, v in vars(module).items() if _is_own(v, module_name)]
            raise unknown(f"{kind} of {module_name}", attribute, own)
        found = getattr(found, part)
    return found


def call(kind: str, path: str, factory: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call somebody's class or function with those of the offered keywords that it takes."""
    try:
        takes = inspect.signature(factory).parameters
        return factory(**{key: value for key, value in offered.items() if key in takes})
    except SalfError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        raise SalfError(f"cannot create the {kind} {path!r}: {in_one_line(error)}.") from error


def _is_own(value: object, module: str) -> bool:
    """Whether a module may mean this: what it defines, and objects it has made."""
    imported = getattr(value, "__module__", module) != module
    is_code = inspect.isclass(value) or inspect.isroutine(value)
    return callable(value) and not (is_code and imported)
