"""The optional packages for pictures and pages, imported when they are first used."""

from importlib import import_module
from typing import Any

from salf.common.errors import SalfError


class Extra:
    """A package of the extra, with what is in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.module(), attribute)

    def module(self) -> Any:
        """The package, or an error that says how to install it."""
        try:
            return import_module(self._name)
        except ModuleNotFoundError as error:
            raise SalfError(
                f"this needs the package {error.name!r}, which is not installed: run "
                "pip install 'salf[report]'"
            ) from None


alt, jinja2, vl_convert = packages = [Extra(name) for name in ("altair", "jinja2", "vl_convert")]


def check_extra() -> None:
    """Fail now, rather than after hours of training, if a report could not be written."""
    for package in packages:
        package.module()
