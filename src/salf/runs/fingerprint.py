"""Digests of Python objects in place of settings, so that only their own run continues."""

import hashlib
import pickle
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

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
    with suppress(Exception):  # of a class inside a function, say: the name must do
        _Contents(SimpleNamespace(write=digest.update)).dump(value)
    name = value.name if isinstance(value, Fleet) else ""
    name = name or getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {digest.hexdigest()[:16]}"


class _Contents(pickle.Pickler):
    """Pickles what an object is made of: of data the numbers, of functions the instructions."""

    fast = True  # no memory of what was seen: equal objects need not share their parts

    def reducer_override(self, value: Any) -> Any:
        content: Any
        match value:
            case DataSet():
                content = [(half.inputs, half.labels) for half in (value.train, value.test)]
            case Partitioned():
                content = value.samples.inputs, value.samples.labels, value.parts
            case Inputs():
                content = value.parts
            case Tensor():
                content = value.detach().cpu().numpy()
            case FunctionType():  # of which a pickle would have the name only
                content = value.__code__
            case CodeType():
                content = value.co_code, value.co_names, value.co_consts
            case _:
                return NotImplemented
        return tuple, ([content],)
