"""The fleets of this edition's results: devices of so many multiply-adds a second, and no more.

Their median speed is assumed, and a step has no fixed cost. The next edition replaces them.
"""

import numpy as np

from salf.worlds.fleet.devices import Fleet, drawn_normal
from salf.worlds.fleet.jitter import LogNormal


def phones(users: int, seed: int, speed: float, sigma: float = 0.93, jitter: float = 0.06) -> Fleet:
    """Log-normal speeds and links of phones."""
    z = drawn_normal(seed, users, 3)
    speeds = speed * np.exp(sigma * z[0])
    up, down = 1e3 * np.exp(8.04 + 0.68 * z[1]), 1e3 * np.exp(8.55 + 0.47 * z[2])
    return Fleet.of(speeds.tolist(), up=up.tolist(), down=down.tolist(), jitter=LogNormal(jitter))


def lab(users: int, seed: int, speed: float, sigma: float = 0.1) -> Fleet:
    """Machines of one kind on a fast network."""
    (z,) = drawn_normal(seed, users, 1)
    return Fleet.of((speed * np.exp(sigma * z)).tolist(), jitter=LogNormal(0.1))
