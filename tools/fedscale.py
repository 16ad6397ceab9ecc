"""FedScale's two files as files of salf: clients' speeds and links, and when they are available.

    python tools/fedscale.py FOLDER OUT [--seconds 604800]

FOLDER has FedScale's `client_device_capacity` ({computation: ms that inference takes for a sample,
communication: kbit/s}) and, if there, `client_behave_trace` ({active: [s], inactive: [s],
finish_time: s}, repeated after `finish_time`), from benchmark/dataset/data/device_info of its
repository. OUT gets fleet.csv and availability.csv: `salf run --fleet OUT/fleet.csv --availability
OUT/availability.csv`. The client of median inference time is as fast as the typical phone of the
fleet `phones`. The files are pickles; only numbers, texts, lists and dicts are read from them.
"""

import argparse
import pickle
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from salf.common.files import csv_of, write_all
from salf.worlds.fleet.files import CONSTANTS, _cell
from salf.worlds.fleet.named import PHONE

CAPACITY, BEHAVIOUR = "client_device_capacity", "client_behave_trace"
KBIT = 125.0  # bytes


class Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts; anything else is refused, and nothing is executed."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, and not plain numbers only")


def clients(path: Path) -> list[Any]:
    """What the file says of each client, in the order of their keys."""
    with path.open("rb") as stream:
        found = Plain(stream).load()
    return [found[key] for key in sorted(found)]


def devices(capacity: list[Any]) -> list[dict[str, Any]]:
    """A line for each device: a phone as fast as its client is, relative to the median client."""
    found = [(each["computation"], each["communication"]) for each in capacity]
    milliseconds, kbit = np.array(found, np.float64).T
    phone = {name: _cell(getattr(PHONE, name)) for name in CONSTANTS}
    speeds = np.median(milliseconds) / milliseconds
    return [
        {"speed": f"{speed:.6g}", "up": f"{link:.6g}", "down": f"{link:.6g}", **phone}
        for speed, link in zip(speeds, kbit * KBIT, strict=True)
    ]


def intervals(client: Any, seconds: float) -> list[tuple[float, float]]:
    """When a client is available until then: intervals that touch are one, and empty ones none."""
    joined: list[tuple[float, float]] = []
    end, period = 0.0, float(client["finish_time"])
    pairs = sorted(zip(client["active"], client["inactive"], strict=True))
    for begin in np.arange(0, seconds, period):
        for start, end in pairs:
            start, end = begin + start, begin + min(end, period)
            if joined and start <= joined[-1][1]:
                start = joined.pop()[0]
            if start < end:
                joined.append((float(start), float(end)))
    return joined


def main(arguments: list[str] | None = None) -> None:
    """Read the files of a folder, and write those of another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=604_800.0)
    given = parser.parse_args(arguments)
    try:
        contents = {given.out / "fleet.csv": csv_of(devices(clients(given.folder / CAPACITY)))}
        if (given.folder / BEHAVIOUR).exists():
            known = clients(given.folder / BEHAVIOUR)
            lines = [
                {"device": device, "start": start, "end": end}
                for device, client in enumerate(known)
                for start, end in intervals(client, given.seconds)
            ]
            contents[given.out / "availability.csv"] = csv_of(lines)
    except Exception as error:  # a broken pickle may raise anything
        sys.exit(f"cannot read FedScale's files in {given.folder}: {error!r}.")
    for path in write_all(contents):
        print(path)


if __name__ == "__main__":
    main()
