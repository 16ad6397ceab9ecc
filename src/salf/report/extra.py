"""The optional packages for pictures and pages."""

from importlib import import_module
from typing import Any

from salf.common.errors import SalfError


def optional(module: str, extra: str = "report") -> Any:
    """Import a module of an extra, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SalfError(
            f"this needs the package {error.name!r}, which is not installed: run "
            f"pip install 'salf[{extra}]'"
        ) from None


def check_extra(*more: str, extra: str = "report") -> None:
    """Fail now, rather than after hours of training, if a report could not be written."""
    for module in ("altair", "jinja2", "vl_convert", *more):
        optional(module, extra)
