"""Fleets as files: a line per device."""

import csv
from pathlib import Path

import numpy as np

from salf.common.errors import SalfError
from salf.worlds.fleet.devices import Devices, Fleet

OPTIONAL = {"up": np.inf, "down": np.inf, "latency": 0.0, "jitter": 0.0}


def read(path: Path) -> Devices:
    """The devices of a file."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
        if not lines:
            raise ValueError("it has no devices")
        columns = set(lines[0])
        if "speed" not in columns or columns - {"speed", *OPTIONAL, "name"}:
            raise ValueError(
                f"it must have the column speed, and may have {', '.join(OPTIONAL)} and name"
            )
        found = {
            name: [float(line[name] or default) for line in lines]
            for name, default in {"speed": np.nan, **OPTIONAL}.items()
            if name in columns
        }
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise SalfError(f"cannot read the fleet {path}: {error}.") from None
    return Fleet.of(**found).devices  # type: ignore[arg-type]
