"""Names and values as people write them, and what they stand for.

Things known by name come with salf, or a package brings them, or they are your own. Wherever a name
is taken (a method, data set, model, depth or engine) an import path is taken too:
`package.module:Name`, also of a file in the current folder. A package adds a name of its own by an
entry point of the group `salf.methods`, `salf.data`, `salf.models`, `salf.depths` or
`salf.engines`.
"""

import importlib
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from salf.common.errors import SalfError, in_one_line, unknown

PATH = "package.module:Name"  # how an import path is written
# Whose import paths are not trusted, and whether those of imported modules are.
_UNTRUSTED: ContextVar[tuple[str, bool] | None] = ContextVar("untrusted", default=None)


class Untrusted(SalfError):
    """A name that stands for code which may not be run."""


@contextmanager
def importing_nothing(whose: str, loaded: bool = False) -> Iterator[None]:
    """Refuse import paths for a while: a file from elsewhere must not run code when looked at.

    `whose` says which file names them. With `loaded`, those of modules that this process has
    imported are found; that is only safe where what is found is not called.
    """
    token = _UNTRUSTED.set((whose, loaded))
    try:
        yield
    finally:
        _UNTRUSTED.reset(token)


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
        return _imported(kind, name)
    raise unknown(kind, name, [*known, *brought, PATH])


def _imported(kind: str, path: str) -> Any:
    """Import `package.module:Name`; like `python -m`, from the current folder too."""
    module_name, _, attribute = path.partition(":")
    untrusted = _UNTRUSTED.get()
    if untrusted is not None and not (untrusted[1] and module_name in sys.modules):
        raise Untrusted(
            f"{untrusted[0]} names the {kind} {path!r}, whose code would be run: give trust=True "
            "if you trust it."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever somebody else's module raises
        reason = in_one_line(error)
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{module_name}.".startswith(f"{missing}."):
            reason += " in the current folder or on the Python path"
        raise SalfError(f"cannot import the {kind} {path!r}: {reason}.") from None
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        own = [n for n, v in vars(module).items() if _is_own(v, module_name)]
        raise unknown(f"{kind} of {module_name}", attribute, own) from None


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


# ---- values, in TOML and on the command line --------------------------------------------------

_WORDS: dict[str, bool] = {"true": True, "yes": True, "on": True}
_WORDS |= {"false": False, "no": False, "off": False}


def converted(value: object, kind: Any, what: str) -> Any:
    """`value` as the simple type `kind`: bool, int, float, str, Literal, or a union of these.

    Text is read as the type that is wanted, since the command line has nothing else: `true`, `3`,
    `none`. `what` names the value in the error.
    """
    found = _as(value, kind)
    if found is _WRONG and get_origin(kind) is Literal:
        raise unknown(f"value of {what}", str(value), map(str, get_args(kind)))
    if found is _WRONG:
        named = getattr(kind, "__name__", None) or str(kind).replace("typing.", "")
        raise SalfError(f"{what} must be of type {named}, not {value!r}.")
    return found


# What a number may be required to be, and how that is said.
LIMITS = {
    "least": (operator.ge, "at least"),
    "most": (operator.le, "at most"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
}


def within(value: Any, limits: Mapping[str, Any], what: str) -> Any:
    """`value`, which must be within those of these limits that it has, unless it is None."""
    for name, (holds, words) in LIMITS.items():
        if value is not None and name in limits and not holds(value, limits[name]):
            raise SalfError(f"{what} must be {words} {limits[name]}, not {value}.")
    return value


_WRONG = object()


def _as(value: Any, kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        found = (_as(value, part) for part in sorted(get_args(kind), key=_strictness))
        return next((part for part in found if part is not _WRONG), _WRONG)
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == str(value)), _WRONG)
    if kind in (NoneType, None):
        return None if value is None or str(value).lower() == "none" else _WRONG
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS.get(str(value).lower(), _WRONG)
    if isinstance(value, bool):
        return _WRONG
    if kind in (int, float) and isinstance(value, str):
        try:
            value = kind(value)
        except ValueError:
            return _WRONG
    if kind is float:
        return value if isinstance(value, int | float) and isfinite(value) else _WRONG
    holds = get_origin(kind) or kind
    return value if not isinstance(holds, type) or isinstance(value, holds) else _WRONG


def _strictness(kind: Any) -> int:
    """The order in which the parts of a union are tried: anything may be text."""
    return [NoneType, bool, int, float].index(kind) if kind in (NoneType, bool, int, float) else 9


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def duration(value: Any) -> Any:
    """Seconds from 50ms, 2s, 1.5min, ...; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s|min)", value.strip())
    if match is None:
        raise SalfError(f"a time needs a unit, such as 50ms, 2s or 1.5min, not {value!r}.")
    return float(match[1]) * _SECONDS[match[2]]
