"""Fleets by name. docs/fleets.md says where their figures come from."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from salf.common import registry
from salf.common.errors import SalfError, unknown
from salf.common.registry import converted
from salf.core.arrivals import Floats
from salf.core.draws import Keyed, Purpose
from salf.worlds.fleet.devices import LAYERS, Devices, Fleet, drawn_normal
from salf.worlds.fleet.jitter import (
    ExponentialLayers,
    Jitter,
    LogNormal,
    ShiftedExponential,
    Steady,
)

KB = 1e3


def phones(
    users: int, seed: int, speed: float = 1e6, sigma: float = 0.93, jitter: float = 0.06
) -> Devices:
    """Log-normal speeds and links of phones; a phone's own times hardly vary.

    The spread of the speeds is that of phones' processors. Their median, in multiply-adds a second,
    is assumed: with it a batch of the paper's MLP takes the median phone 0.8 s. Phones measured in
    training were more than a thousand times as fast, with a fixed cost per step.
    """
    z = drawn_normal(seed, users, 3)
    return Devices(
        speed=speed * np.exp(sigma * z[0]),
        up=KB * np.exp(8.04 + 0.68 * z[1]),
        down=KB * np.exp(8.55 + 0.47 * z[2]),
        latency=np.zeros(users),
        jitter=LogNormal(jitter) if jitter else Steady(),
    )


def edge(users: int, seed: int, mean: float = 0.5) -> Devices:
    """Four classes of edge devices, 1 to 20 times as fast, with shifted exponential times."""
    speeds, parts = np.array([25e6, 5e6, 2.5e6, 1.25e6]), np.array([10, 5, 5, 5])
    place = Keyed(seed, 0).uniform(np.arange(users), Purpose.DEVICE)[:, 0]
    kind = np.searchsorted(np.cumsum(parts / parts.sum())[:-1], place, side="right")
    return _without_links(speeds[kind], ShiftedExponential(mean))


def lab(users: int, seed: int, speed: float = 1e9, sigma: float = 0.1) -> Devices:
    """Machines of one kind on a fast network: nobody is slow for long."""
    (z,) = drawn_normal(seed, users, 1)
    return _without_links(speed * np.exp(sigma * z), LogNormal(0.1))


def slow_classes(users: int, seed: int, speed: float = 1.0, sigma: float = 0.93) -> Devices:
    """Devices that stay slow, dealt by label, so that slow users hold their own classes.

    Every layer takes an exponential time, of mean 1 s on the median device.
    """
    (z,) = drawn_normal(seed, users, 1)
    made = _without_links(speed * np.exp(sigma * z), ExponentialLayers())
    return replace(made, kinds=(LAYERS,), pair="labels")


NAMED: Mapping[str, Callable[..., Devices]]
NAMED = {"phones": phones, "edge": edge, "lab": lab, "slow-classes": slow_classes}
GROUP = "salf.fleets"  # of entry points, for packages that bring fleets


def make(name: str, users: int, seed: int, options: Mapping[str, Any]) -> Devices:
    """The devices of a fleet by name, import path or file: `salf.Fleet` calls it."""
    if name.endswith(".csv"):
        if options:
            raise SalfError(f"a fleet from a file has no option {next(iter(options))!r}.")
        return Fleet.csv(name, users).devices
    if name in NAMED:
        known = [key for key in inspect.signature(NAMED[name]).parameters if key != "users"]
        for key in options:
            if key not in known:
                raise unknown(f"option of the fleet {name!r}", key, known)
        numbers = {
            key: converted(value, float, f"the option {key} of the fleet {name!r}")
            for key, value in options.items()
        }
        return NAMED[name](users, seed, **numbers)
    recipe = registry.find("fleet", name, dict.fromkeys(NAMED), GROUP)
    made = registry.call("fleet", name, recipe, {"users": users, "seed": seed, **options})
    if isinstance(made, Fleet):
        made = made.devices
    if not isinstance(made, Devices) or len(made.speed) != users:
        raise SalfError(f"the fleet {name!r} must return a salf.Fleet of {users} users.")
    return made


GIVEN = "given"  # the name of a Fleet that was given as an object


def parse(spec: str, users: int, seed: int, available: str = "always") -> Fleet:
    """Read a fleet as people write it: phones | phones:speed=1e6,jitter=0.3 | FILE.csv | path."""
    name, options = spec, {}
    head, _, rest = spec.partition(":")
    if "=" in rest:
        name, options = head, dict(_option(spec, part) for part in rest.split(","))
    seed = int(options.pop("seed", seed))
    fleet = Fleet(name, users, seed, available, **options)
    fleet.name = spec
    return fleet


def assumed(spec: str) -> str:
    """A caveat about times on a named fleet whose speed was not given; empty for others."""
    name, _, options = spec.partition(":")
    if name not in NAMED or "speed=" in options:
        return ""
    slow = ", more than a thousand times slower than measured phones" if name == "phones" else ""
    return (
        f"Device speeds of the fleet {name} are assumed{slow}, with no fixed cost per step; ratios "
        "of times will change."
    )


def check(spec: str) -> None:
    """Refuse a name that no fleet has; files and your own are looked at when they are made."""
    name = spec.partition(":")[0] if "=" in spec else spec
    if name == GIVEN:
        return
    if name not in NAMED and not name.endswith(".csv"):
        registry.find("fleet", name, dict.fromkeys([*NAMED, "FILE.csv"]), GROUP)
    elif name.endswith(".csv") and not Path(name).is_file():
        raise SalfError(f"there is no file {name}.")


def _option(spec: str, part: str) -> tuple[str, float]:
    key, _, value = part.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError:
        raise SalfError(
            f"write options of a fleet as in phones:speed=1e6,jitter=0.3, not {spec!r}."
        ) from None


def _without_links(speed: Floats, jitter: Jitter) -> Devices:
    none = np.full(len(speed), np.inf)
    return Devices(speed, none, none, np.zeros(len(speed)), jitter)
