"""Fleets as files: a line per device, or per kind of device that was calibrated."""

import csv
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from salf.common.errors import SalfError
from salf.common.files import csv_text, write_whole
from salf.core.arrivals import Floats
from salf.worlds.fleet.devices import DeviceClass, Fleet

OPTIONAL = {"speed": 1.0, "up": np.inf, "down": np.inf, "latency": 0.0, "jitter": 0.0, "users": 1.0}
CONSTANTS = ("launch", "parameter", "multiply_add")  # of a class of devices


def read(path: Path, users: int | None = None) -> Fleet:
    """The fleet of a file: lines with the constants of a class have a speed relative to it.

    If there are more `users` than devices, devices are reused in turn.
    """
    try:
        lines = _lines(path)
        columns = {*lines[0]} if lines else set()
        calibrated = columns >= {*CONSTANTS}
        if columns - {*OPTIONAL, *CONSTANTS, "name"} or not (calibrated or "speed" in columns):
            raise ValueError(
                f"it must have devices, with the column speed, or {', '.join(CONSTANTS)}, and may "
                f"have {', '.join(OPTIONAL)} and name"
            )
        lines = [line for line in lines for _ in range(int(line.get("users") or 1))]
        found: dict[str, Any] = {
            name: [float(line[name] or default) for line in lines]
            for name, default in OPTIONAL.items()
            if name in columns and name != "users"
        }
        if calibrated:
            found.setdefault("speed", [1.0] * len(lines))
            made = lru_cache(_device_class)  # as many users may have devices of one class
            found["counted"] = [made(*(line[name] for name in CONSTANTS)) for line in lines]
        fleet = Fleet.of(**found)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise SalfError(f"cannot read the fleet {path}: {error}".rstrip(".") + ".") from None
    count = len(fleet) if users is None else users
    if count < len(fleet):
        raise SalfError(
            f"the fleet {path} has {len(fleet)} devices for {count} users: set users to "
            f"{len(fleet)}, or remove lines."
        )
    return fleet.of_users(np.arange(count) % len(fleet))


def write(path: Path, name: str, kind: DeviceClass, jitter: float) -> None:
    """Add a line for a calibrated device to a file, which is made if there is none."""
    constants = {each: _cell(getattr(kind, each)) for each in CONSTANTS}
    line = {"name": name, "users": "1", "speed": "1", **constants, "jitter": f"{jitter:.2g}"}
    lines = [*(_lines(path) if path.exists() else ()), line]
    if any(set(each) != set(line) for each in lines):
        raise SalfError(f"{path} has other columns than a calibrated fleet: choose another file.")
    write_whole(path, csv_text([line, *([each[key] for key in line] for each in lines)]))


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _device_class(*constants: str) -> DeviceClass:
    named: Any = dict(zip(CONSTANTS, map(_constant, constants), strict=True))
    return DeviceClass("calibrated devices", **named)


def _constant(cell: str) -> float | Floats:
    """One number for all layers, or one for the forward pass and one for each layer's backward."""
    numbers = [float(number) for number in cell.split()]
    return numbers[0] if len(numbers) == 1 else passes(numbers)


def passes(numbers: Sequence[float] | Floats) -> Floats:
    """A constant of the forward pass and of the backward pass of layers 1..L as [2, L]."""
    return np.array([np.full(len(numbers) - 1, numbers[0]), numbers[1:]])


def _cell(constant: float | Floats) -> str:
    values = np.asarray(constant)
    numbers = [values[0, 0], *values[1]] if values.ndim else [values]
    return " ".join(f"{number:.4g}" for number in numbers)
