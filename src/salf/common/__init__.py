"""Small helpers that know nothing of federated learning: errors, files, options, the process."""

from collections.abc import Callable
from importlib import metadata

Report = Callable[[str], None]  # gets a line about what is being done


def version() -> str:
    """The version of salf that is installed."""
    try:
        return metadata.version("salf")
    except metadata.PackageNotFoundError:  # a source tree
        return "0+unknown"
