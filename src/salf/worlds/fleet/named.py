"""Fleets by name. docs/fleets.md says where their figures come from."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from salf.common import registry
from salf.common.errors import SalfError, unknown
from salf.common.registry import converted
from salf.core.arrivals import Floats
from salf.worlds.fleet.devices import DeviceClass, Fleet, drawn_normal
from salf.worlds.fleet.fedscale import fedscale
from salf.worlds.fleet.files import read
from salf.worlds.fleet.jitter import ExponentialLayers, LogNormal

# Fitted by tools/fit_phones.py to steps measured on one phone, and checked on another.
PHONE = DeviceClass(
    "typical phones",
    multiply_add=8.2e-12,
    launch=0.73e-3,
    parameter=14e-9,
    large=8.7,
    depthwise=500.0,
)
# Of a Raspberry Pi 4, training with PyTorch; what it takes to launch and write is an estimate.
PI = DeviceClass(
    "Raspberry Pis 4", multiply_add=1.04e-10, launch=0.3e-3, parameter=10e-9, depthwise=135.0
)
# Of a Cortex-M4 at 80 MHz, in float32; it launches nothing, and writing is like two multiply-adds.
MICROCONTROLLER = DeviceClass("Cortex-M4s", multiply_add=1.04e-7, parameter=2.1e-7)

KB = 1e3
# Of the logarithm of kB/s: the mean and the spread, down and up; one pair if they are the same.
LINKS: Mapping[str, tuple[float, ...]] = {
    "phones": (8.55, 0.47, 8.04, 0.68),
    "clients": (6.70, 1.16),
    "wifi": (8.52, 0.5),
    "lan": (11.67, 0.0),
    "ble": (4.14, 0.3, 3.75, 0.3),
    "none": (np.inf, 0.0),
}


def phones(
    users: int,
    seed: int,
    speed: float = 1.0,
    sigma: float = 0.78,
    jitter: float = 0.06,
    links: str = "phones",
) -> Fleet:
    """Phones of log-normal speeds and links; `speed` 1 is the median phone."""
    z = drawn_normal(seed, users, 3)
    return _made(PHONE, speed * np.exp(sigma * z[0]), z, jitter, links)


def pis(
    users: int, seed: int, speed: float = 1.0, jitter: float = 0.06, links: str = "wifi"
) -> Fleet:
    """Raspberry Pis 3, 4 and 5, as many of each; `speed` 1 is a Pi 4."""
    z = drawn_normal(seed, users, 3)
    return _made(PI, speed * _one_of((0.5, 1.0, 1.9), z[0]), z, jitter, links)


def microcontrollers(
    users: int, seed: int, speed: float = 1.0, jitter: float = 0.01, links: str = "ble"
) -> Fleet:
    """Boards with a Cortex-M4 or a Cortex-M7, as many of each; `speed` 1 is an M4 at 80 MHz."""
    z = drawn_normal(seed, users, 3)
    return _made(MICROCONTROLLER, speed * _one_of((1.0, 4.2), z[0]), z, jitter, links)


def slow_classes(users: int, seed: int, speed: float = 1.0, sigma: float = 0.93) -> Fleet:
    """Made up: devices that stay slow, dealt by label, so that slow users hold their own classes.

    Every layer takes an exponential time, of mean 1 s on the median device.
    """
    (z,) = drawn_normal(seed, users, 1)
    law = ExponentialLayers()
    return Fleet.of(speed * np.exp(sigma * z), jitter=law, counted="layers", pair="labels")


def _made(kind: DeviceClass, speed: Floats, z: Floats, jitter: float, links: str) -> Fleet:
    """A fleet of one class; `z` are standard normal numbers of each, the last two for its link."""
    if links not in LINKS:
        raise unknown("kind of links", links, LINKS)
    mean, spread, *apart = LINKS[links]
    down = up = KB * np.exp(mean + spread * z[2])
    if apart:
        up = KB * np.exp(apart[0] + apart[1] * z[1])
    return Fleet.of(speed, up=up, down=down, jitter=LogNormal(jitter), counted=kind)


def _one_of(speeds: tuple[float, ...], z: Floats) -> Floats:
    """The speed of each device's model, which are equally frequent."""
    edges = [NormalDist().inv_cdf(k / len(speeds)) for k in range(1, len(speeds))]
    return np.array(speeds)[np.searchsorted(edges, z)]


NAMED: Mapping[str, Callable[..., Fleet]] = {
    made.__name__.replace("_", "-"): made for made in (phones, pis, microcontrollers, slow_classes)
}
FIGURES = hashlib.sha256(repr([PHONE, PI, MICROCONTROLLER, LINKS]).encode()).hexdigest()[:16]
FEDSCALE = "fedscale:"  # and the folder of its files
CLASSES = {"phones": PHONE, "pis": PI, "microcontrollers": MICROCONTROLLER}
GROUP = "salf.fleets"  # of entry points, for packages that bring fleets


def make(name: str, users: int | None, seed: int, options: Mapping[str, Any]) -> Fleet:
    """A fleet by name, import path or file: `salf.Fleet` calls it."""
    if users is None and not name.endswith(".csv"):
        raise SalfError(f"say how many users the fleet has, as in Fleet({name!r}, users=30).")
    recipe, told = _recipe(name), dict(options)
    for option, value in options.items():
        taken = inspect.signature(recipe).parameters
        if option not in taken:
            raise unknown(f"option of the fleet {name!r}", option, [*taken][2:])
        if (kind := type(taken[option].default)) in (float, str):
            told[option] = converted(value, kind, f"the option {option} of the fleet {name!r}")
    made = registry.call("fleet", name, recipe, {**told, "users": users, "seed": seed})
    if not isinstance(made, Fleet) or users not in (None, len(made)):
        raise SalfError(f"the fleet {name!r} must return a salf.Fleet of {users} users.")
    return made


def _recipe(name: str) -> Callable[..., Any]:
    """What makes a fleet of so many users with a seed."""
    if name.endswith(".csv"):
        return lambda users, seed: read(Path(name), users)
    if name.startswith(FEDSCALE):
        folder = Path(name.removeprefix(FEDSCALE))
        return lambda users, seed: fedscale(folder, users, seed, PHONE)
    known = {**NAMED, f"{FEDSCALE}FOLDER": None, "FILE.csv": None}
    recipe: Callable[..., Any] = registry.find("fleet", name, known, GROUP)
    return recipe


GIVEN = "given"  # the name of a Fleet that was given as an object


def figures(spec: str) -> str:
    """A digest of what is behind a named fleet, whose times are no longer the same if it changes.

    Empty for other fleets, and for that which is made up.
    """
    measured = spec.partition(":")[0] in NAMED.keys() - {"slow-classes"}
    return FIGURES if measured else ""


def check(spec: str) -> None:
    """Refuse a name that no fleet has; files and your own are looked at when they are made."""
    if spec != GIVEN:
        _recipe(with_options(spec, {})[0])


def with_options(spec: str, more: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options of a fleet as people write it, and more options of it.

    phones | phones:speed=2,links=none | FILE.csv | fedscale:FOLDER | package.module:Name
    """
    name, _, rest = spec.rpartition(":")
    if "=" not in rest:
        return spec, dict(more)
    options = dict[str, Any]()
    for part in rest.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if not value:
            raise SalfError(
                f"write options of a fleet as in phones:speed=2,links=none, not {spec!r}."
            )
        options[key] = converted(value, float | str, key)
    return name, {**options, **more}
