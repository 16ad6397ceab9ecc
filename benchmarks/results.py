"""What a benchmark found, for whoever runs several of them (`benchmarks/all.py`)."""

import json
import os
from pathlib import Path

FILE = "SALF_BENCH_RESULTS"  # in the environment: where results go, one JSON object a line


def note(what: str, value: float, unit: str, to: str = "") -> None:
    """Record a number and, if there is one, the target it should reach."""
    if (file := os.environ.get(FILE)) is None:
        return
    with Path(file).open("a") as lines:
        found = {"what": what, "value": value, "unit": unit, "to": to}
        lines.write(json.dumps(found) + "\n")
