"""FedScale's two files as a fleet: the capacity of its clients, and when they are available.

The capacity of a client is {computation: ms that inference takes for a sample, communication:
kbit/s}; its availability is {active: [s], inactive: [s], finish_time: s, ...}, repeated after
`finish_time`. Files of one's own in the same format serve as well.
"""

import hashlib
import pickle
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.core.draws import Purpose
from salf.worlds.fleet.availability import Always, Availability, Intervals
from salf.worlds.fleet.devices import DeviceClass, Fleet

CAPACITY, BEHAVIOUR = "client_device_capacity", "client_behave_trace"
URL = (
    "https://raw.githubusercontent.com/SymbioticLab/FedScale/"
    "7ec441c2afa99510535adebe155d89fa8bb2c637/benchmark/dataset/data/device_info/"
)
# The ids that git has of the files in FedScale's repository.
IDS = {
    CAPACITY: "0cb98be00fac42c6b961cae0dbc1a6c25be88828",
    BEHAVIOUR: "5bc3b516c0ee0a0de2c6267e39cd863717d5a63b",
}
KBIT = 125.0  # bytes


def fedscale(folder: Path, users: int, seed: int, typical: DeviceClass) -> Fleet:
    """Users are clients drawn at random, of either file independently.

    The median client is as fast as the `typical` device of its class. Without a file of
    availability, devices are always available; without the folder, both files are downloaded.
    """
    for name in () if folder.exists() else IDS:
        _download(folder, name)
    rng = np.random.default_rng([seed, Purpose.DEVICE])
    try:
        capacity = _clients(folder / CAPACITY)
        found = [(each["computation"], each["communication"]) for each in capacity]
        milliseconds, kbit = np.array(found, np.float64).T
        some = np.resize(rng.permutation(len(capacity)), users)
        available: Availability = Always()
        if (folder / BEHAVIOUR).exists():
            behaviour = _clients(folder / BEHAVIOUR)
            order = np.resize(rng.permutation(len(behaviour)), users)
            clients = {user: behaviour[place] for user, place in enumerate(order.tolist())}
            available = Intervals(
                {user: _intervals(client) for user, client in clients.items()},
                {user: float(client["finish_time"]) for user, client in clients.items()},
            )
    except Exception as error:  # a broken pickle may raise anything
        raise SalfError(f"cannot read FedScale's files in {folder}: {error!r}.") from None
    speed, link = np.median(milliseconds) / milliseconds[some], kbit[some] * KBIT
    return Fleet.of(speed, up=link, down=link, counted=typical, availability=available)


def _intervals(client: Any) -> list[tuple[float, float]]:
    """When a client is available: intervals that touch are one, and empty ones none."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(zip(client["active"], client["inactive"], strict=True)):
        end = min(end, client["finish_time"])
        if joined and start <= joined[-1][1]:
            start = joined.pop()[0]
        if start < end:
            joined.append((float(start), float(end)))
    return joined


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts; anything else is refused, and nothing is executed."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, and not plain numbers only")


def _clients(path: Path) -> list[Any]:
    with path.open("rb") as stream:
        found = _Plain(stream).load()
    return [found[key] for key in sorted(found)]


def _download(folder: Path, name: str) -> None:
    try:
        with urllib.request.urlopen(URL + name, timeout=30) as answer:
            content: bytes = answer.read()
    except OSError as error:
        raise SalfError(
            f"there is no folder {folder}, and {URL}{name} cannot be downloaded ({error}): put "
            f"FedScale's files {CAPACITY} and {BEHAVIOUR} there."
        ) from None
    if hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() != IDS[name]:
        raise SalfError(f"{URL}{name} is not the expected file (its hash differs).")
    write_whole(folder / name, content)
