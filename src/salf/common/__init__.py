"""Small helpers that know nothing of federated learning: errors, files, options, the process."""

import ast
from collections.abc import Callable
from importlib import import_module, metadata, resources
from typing import Any

Report = Callable[[str], None]  # gets a line about what is being done


def version() -> str:
    """The version of salf that is installed."""
    try:
        return metadata.version("salf")
    except metadata.PackageNotFoundError:  # a source tree
        return "0+unknown"


def lazy(package: str) -> tuple[list[str], Callable[[str], Any]]:
    """The names in the `__init__.pyi` of a package, and what loads one when it is first used."""
    text = resources.files(package).joinpath("__init__.pyi").read_text("utf-8")
    homes = {
        each.asname or each.name: (line.module or "", each.name)
        for line in ast.parse(text).body
        if isinstance(line, ast.ImportFrom)
        for each in line.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = homes[name]
        return getattr(import_module(home), attribute)

    return sorted(homes), load
