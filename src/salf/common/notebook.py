"""What results are in Python and in a notebook: data frames, and packages for more."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from salf.common.errors import SalfError


def frame(records: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame with a row per record."""
    return package("pandas", "pandas").DataFrame(list(records))


def package(name: str, installed_by: str) -> Any:
    """A package that is not always installed, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise SalfError(f"this needs {name!r}: run pip install {installed_by}.") from None
