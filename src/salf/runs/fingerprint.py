"""Digests of Python objects in place of settings, so that only their own run continues."""

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from salf.core.inputs import Inputs
from salf.data import DataSet, Partitioned
from salf.engines import cross_entropy
from salf.worlds.fleet.devices import Fleet


def fingerprints(parts: Mapping[str, Any]) -> dict[str, str]:
    """The digest of each object that no setting says."""
    return {
        name: fingerprint(value)
        for name, value in parts.items()
        if name not in ("metrics", "options")  # which change nothing, and which are settings
        and not isinstance(value, str | int | float | None)
        and value is not cross_entropy
    }


def fingerprint(value: Any) -> str:
    """Equal for equal objects, in this process and the next."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    name = value.name if isinstance(value, Fleet) else ""
    name = name or getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {digest.hexdigest()[:16]}"


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, DataSet):
        value = (value.train.inputs, value.train.labels, value.test.inputs, value.test.labels)
    if isinstance(value, Partitioned):
        value = (value.samples.inputs, value.samples.labels, *value.parts)
    if isinstance(value, Inputs):
        value = value.parts
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value and not np.isscalar(value[0]):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, Tensor | np.ndarray | tuple | list):
        array = np.ascontiguousarray(value.cpu() if isinstance(value, Tensor) else value)
        yield f"{array.dtype} {array.shape}".encode()
        yield array.tobytes()
    elif isinstance(value, FunctionType):  # a pickle would have its name only
        yield from _code(value.__code__)
    else:
        with suppress(Exception):  # of a class inside a function, say: the name must do
            yield pickle.dumps(value)


def _code(code: CodeType) -> Iterator[bytes]:
    """The instructions of a function, as far as they are in the function itself."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()
