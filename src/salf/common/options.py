"""Values as people write them, in TOML and on the command line, turned into what a field holds."""

import re
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from salf.common.errors import SalfError, unknown

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
        raise SalfError(f"{what} must be {_words(kind)}, not {value!r}.")
    return found


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


def _words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_words(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    if kind in (NoneType, None):
        return "none"
    return f"of type {getattr(get_origin(kind) or kind, '__name__', kind)}"


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def duration(value: Any) -> Any:
    """Seconds from 50ms, 2s, 1.5min, ...; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s|min)", value.strip())
    if match is None:
        raise SalfError(f"a time needs a unit, such as 50ms, 2s or 1.5min, not {value!r}.")
    return float(match[1]) * _SECONDS[match[2]]
