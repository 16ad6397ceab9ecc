"""Fleets as files: a line per device, or recorded times."""

import csv
from pathlib import Path

import numpy as np

from salf.common.errors import SalfError
from salf.worlds.fleet.devices import Devices, Fleet
from salf.worlds.fleet.jitter import Traces

OPTIONAL = {"up": np.inf, "down": np.inf, "latency": 0.0, "jitter": 0.0}
RECORDED = {"device", "round", "stage", "seconds"}


def read(path: Path) -> Devices:
    """The devices of a file, whichever of the two kinds it is."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SalfError(f"cannot read the fleet {path}: {error}.") from None
    if not lines:
        raise SalfError(f"the fleet {path} has no devices.")
    columns = set(lines[0])
    try:
        if columns >= RECORDED:
            return _recorded(lines)
        if "speed" not in columns or columns - {"speed", *OPTIONAL, "name"}:
            raise SalfError(
                f"the fleet {path} must have the column speed, and may have "
                f"{', '.join(OPTIONAL)} and name, or the columns {', '.join(sorted(RECORDED))}."
            )
        found = {
            name: [float(line[name] or default) for line in lines]
            for name, default in {"speed": np.nan, **OPTIONAL}.items()
            if name in columns
        }
    except (ValueError, TypeError, KeyError) as error:
        raise SalfError(f"cannot read the fleet {path}: {error}.") from None
    return Fleet.of(**found).devices  # type: ignore[arg-type]


def _recorded(lines: list[dict[str, str]]) -> Devices:
    """Times of stages, numbered from 1: the last layer with the forward pass, ..., the first.

    Stage 0 is the overhead of a round of a live run. `rows` is the size of the recorded batches.
    """
    devices: dict[int, dict[int, dict[int, float]]] = {}
    overhead: dict[int, list[float]] = {}
    rows: dict[int, float] = {}
    for line in lines:
        device, stage, seconds = int(line["device"]), int(line["stage"]), float(line["seconds"])
        rows[device] = float(line.get("rows") or Devices.REFERENCE)
        own = devices.setdefault(device, {}).setdefault(int(line["round"]), {})
        if stage:
            own[stage] = seconds
        else:
            overhead.setdefault(device, []).append(seconds)
    stages = {len(times) for rounds in devices.values() for times in rounds.values()}
    partly = overhead and {d: len(own) for d, own in devices.items()} != {
        d: len(own) for d, own in overhead.items()
    }
    if len(stages) != 1 or partly or sorted(devices) != list(range(len(devices))):
        raise SalfError(
            "recorded times must contain all stages of every round and number devices from 0."
        )
    rounds = tuple(
        np.array([[times[stage] for stage in sorted(times)] for times in devices[device].values()])
        for device in sorted(devices)
    )
    usual = np.array([np.median(own.sum(axis=1)) for own in rounds])
    beside = tuple(np.array(overhead[device]) for device in sorted(devices)) if overhead else None
    size = np.array([rows[device] for device in sorted(devices)]) / Devices.REFERENCE
    # In layers a second, so that a nominal round takes what a recorded one usually does.
    return Fleet.of(
        speed=(rounds[0].shape[1] * size / usual).tolist(),
        jitter=Traces(rounds, beside),
        counted="layers",
    ).devices
