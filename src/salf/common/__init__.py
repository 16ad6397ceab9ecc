"""Small helpers that know nothing of federated learning: errors, files, options, the process."""

from collections.abc import Callable

Report = Callable[[str], None]  # gets a line about what is being done
