"""What people hear while a data set is fetched."""

from collections.abc import Callable

Report = Callable[[str], None]  # gets a line
OnBytes = Callable[[int], None]  # gets the bytes downloaded so far


def megabytes(count: int) -> str:
    """A number of bytes as people read it."""
    return f"{count / 1e6:.1f} MB"
