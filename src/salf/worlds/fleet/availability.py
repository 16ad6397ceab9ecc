"""When devices are available: as the time at which each is next, not as a yes or no to poll.

Times are seconds of the simulated clock. While a device is not available its work pauses. What a
device does is a function of (seed, device, time).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from salf.common.errors import SalfError, unknown
from salf.common.files import read_numbers
from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed, Purpose, keyed_uniform, normal

DAY = 86_400.0


class Availability(ABC):
    """When each device of a fleet is available."""

    always = False
    memory = np.inf  # seconds after which what a device did before no longer matters

    @abstractmethod
    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        """From when until when each device is next available: now, if it is; inf if never."""

    def active(self, devices: Ints, start: float, seconds: float | Floats) -> Floats:
        """For how long each device is available within the `seconds` after `start`.

        An array of several `seconds` gives an array [seconds, devices].
        """
        ends = start + np.asarray(seconds, np.float64)[..., None]
        now, last = np.full(len(devices), start), float(ends.max())
        total = np.zeros((*ends.shape[:-1], len(devices)))
        while (now < last).any():
            opens, closes = self.window(devices, now)
            total += np.maximum(np.minimum(closes, ends) - np.minimum(opens, ends), 0)
            now = np.minimum(closes, last)
        return np.asarray(total)

    def elapsed(self, devices: Ints, start: float, needed: Floats) -> Floats:
        """The time after `start` at which work of `needed` seconds is done: [devices, stages]."""
        flat, shape = needed.ravel(), needed.shape
        who = np.repeat(devices, shape[1])
        now, left, done = np.full(len(flat), start), flat.copy(), np.full(len(flat), np.inf)
        going = np.arange(len(flat))
        while len(going):
            opens, closes = self.window(who[going], now[going])
            fits = opens + left[going] <= closes
            done[going[fits]] = (opens + left[going])[fits] - start
            again = ~fits & np.isfinite(closes)  # not those who never come back
            left[going[again]] -= closes[again] - opens[again]
            now[going[again]] = closes[again]
            going = going[again]
        return done.reshape(shape)

    def time_available(self, devices: Ints) -> Floats:
        """The part of the time each device is available, next to the others of its fleet."""
        return np.ones(len(devices))

    def of(self, devices: Ints) -> "Availability":
        """The availability of users who have these devices."""
        return Assigned(self, devices)

    def unknown(self, devices: int) -> list[int]:
        """States of so many devices of which nothing is known."""
        return []


class Always(Availability):
    """Every device is always available."""

    always = True

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        return times, np.full(len(devices), np.inf)

    def active(self, devices: Ints, start: float, seconds: float | Floats) -> Floats:
        return np.repeat(np.asarray(seconds, np.float64)[..., None], len(devices), axis=-1)

    def elapsed(self, devices: Ints, start: float, needed: Floats) -> Floats:
        return needed

    def of(self, devices: Ints) -> Availability:
        return self


@dataclass(frozen=True, eq=False)
class Assigned(Availability):
    """The availability of users, each with a device of its own."""

    devices: Availability
    device_of: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", self.devices.memory)

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        return self.devices.window(self.device_of[devices], times)

    def time_available(self, devices: Ints) -> Floats:
        return self.devices.time_available(self.device_of[devices])


@dataclass(frozen=True)
class DayAndNight(Availability):
    """Once a period each device is available, for the same part of it, most of them at night.

    A device's window is `part` of the `period` long. Its middle is at the time `middle` of the
    period, plus an own, normal part of standard deviation `spread`, the same every day.
    """

    part: float = 1 / 3
    period: float = DAY
    middle: float = 2 * 3600.0
    spread: float = 2 * 3600.0
    seed: int = 0

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        length = self.part * self.period
        u = Keyed(self.seed, 0).uniform(devices, Purpose.AVAILABLE, 2)
        opens = self.middle + self.spread * normal(u[:, 0], u[:, 1]) - length / 2
        # The first window that is not over: rounding must not give one that ends now.
        opens = opens + np.ceil((times - opens - length) / self.period) * self.period
        opens = np.where(opens + length <= times, opens + self.period, opens)
        return np.maximum(opens, times), opens + length


class OnAndOff(Availability):
    """Devices come and go: available for a time, then not, for random times of their own.

    `on` and `off` are the mean times. Times off are exponential. Times on are exponential too,
    which makes a Markov chain, or, with `log_sd`, log-normal with that standard deviation of their
    logarithm. Devices are in equilibrium from the start.
    """

    CYCLES = 32  # drawn at a time

    def __init__(self, on: float, off: float, seed: int = 0, log_sd: float | None = None) -> None:
        if not on > 0 or not off > 0:
            raise SalfError(f"mean times on and off must be above 0, not {on} and {off}.")
        self.on, self.off, self.log_sd, self.seed = on, off, log_sd, seed
        self.memory = 3 * (on + off)
        self._known = np.zeros((2, 0))

    def __getstate__(self) -> dict[str, Any]:  # a copy need not know what was looked at
        return {**self.__dict__, "_known": np.zeros((2, 0))}

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        """Cycle after cycle of each device, not far from those looked at last if times go on.

        Earlier times are looked for from time 0 on, so what was asked before changes nothing.
        """
        # A block of cycles of each device, before the last one looked at, and when it begins.
        more = int(devices.max(initial=-1)) + 1 - self._known.shape[1]
        if more > 0:
            self._known = np.pad(self._known, ((0, 0), (0, max(more, self._known.shape[1]))))
        at = self._known[:, devices]
        at[:, at[1] > times] = 0
        before = at.copy()
        opens, closes = np.full(len(devices), np.inf), np.full(len(devices), np.inf)
        going = np.arange(len(devices))
        while len(going):
            block, begin = at[:, going]
            lengths = self._lengths(devices[going], block.astype(np.int64))
            edges = begin[:, None] + lengths.cumsum(axis=1)
            starts = np.column_stack([begin, edges[:, 1:-1:2]])
            found = edges[:, ::2] > times[going, None]
            first, each = found.argmax(axis=1), np.arange(len(going))
            has = found[each, first]
            opens[going[has]] = np.maximum(starts[each, first], times[going])[has]
            closes[going[has]] = edges[each, 2 * first][has]
            before[:, going[~has]] = at[:, going[~has]]
            going = going[~has]
            at[:, going] = block[~has] + 1, edges[~has, -1]
        self._known[:, devices] = before
        return opens, closes

    def _lengths(self, devices: Ints, blocks: Ints) -> Floats:
        """The times on, off, on, ... of a block of cycles of each device: [devices, 2 * CYCLES]."""
        # A device is often asked for several times: what it does is drawn once.
        pairs, place = np.unique(np.stack([devices, blocks]), axis=1, return_inverse=True)
        devices, blocks = pairs
        n = self.CYCLES
        u = keyed_uniform(self.seed, 0, devices, Purpose.AVAILABLE, 3 * n + 3, blocks[:, None] + 1)
        lengths = np.empty((len(devices), 2 * n))
        lengths[:, ::2] = self._time_on(u[:, :n], u[:, n : 2 * n])
        lengths[:, 1::2] = self._time_off(u[:, 2 * n : 3 * n], devices)
        first = blocks == 0
        lengths[first, :2] = self._first(devices, u[:, -3:].T, lengths[:, 1])[first]
        return np.asarray(lengths[place.ravel()])

    def _first(self, devices: Ints, u: Floats, off: Floats) -> Floats:
        """The first times on and off, of which only what is left at time 0: [devices, 2]."""
        first, second, chance = u
        part = self.on / (self.on + self.off)
        # Of the session that is going on at time 0, long ones more likely, some is left.
        left = self._time_on(first, second, by_length=True)
        if self.log_sd is not None:
            left = left * chance / part
        # A device that is off has a session of no length, and then what is left of its break.
        return np.column_stack([np.where(chance < part, left, 0.0), off])

    def _time_on(self, first: Floats, second: Floats, by_length: bool = False) -> Floats:
        if self.log_sd is None:  # what is left of an exponential time has the same law
            return np.asarray(-self.on * np.log1p(-first))
        z = normal(first, second)
        median = self.on * np.exp(-(self.log_sd**2) / 2)
        # A log-normal law weighted by length is log-normal with its mean moved by the variance.
        return np.asarray(median * np.exp(self.log_sd * z + (self.log_sd**2 if by_length else 0)))

    def _time_off(self, first: Floats, devices: Ints) -> Floats:
        return np.asarray(-self.off * np.log1p(-first))


def sessions(
    part: float = 0.095, median: float = 181.0, log_sd: float = 2.6, seed: int = 0
) -> OnAndOff:
    """Log-normal sessions of this median, such that devices are available this part of the time.

    The defaults are a fit to phones (docs/fleets.md).
    """
    on = median * float(np.exp(log_sd**2 / 2))
    return OnAndOff(on, on * (1 / part - 1), seed, log_sd)


class Quantiles:
    """A law of times given by some of its quantiles, log-linear in between."""

    PARTS = np.array([0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100]) / 100

    def __init__(self, *seconds: float) -> None:
        self._logs, self._grid = np.log(seconds), np.linspace(0, 1, 2**14 + 1)
        middles = self.at((self._grid[1:] + self._grid[:-1]) / 2)
        self.mean = float(middles.mean())
        self._by_length = np.concatenate([[0.0], middles.cumsum() / middles.sum()])

    def at(self, u: Floats, by_length: bool = False) -> Floats:
        """The times below which these parts of all times are, or of the sum of all times."""
        if by_length:
            u = np.interp(u, self._by_length, self._grid)
        return np.asarray(np.exp(np.interp(u, self.PARTS, self._logs)))


class Clients(OnAndOff):
    """Phones as 100 were observed for 5 to 13 days: 5,709 sessions, 5,609 gaps (docs/fleets.md).

    Sessions and gaps follow the quantiles of all that were observed; every device has its own share
    of the time, and gaps so much longer or shorter that it has.
    """

    ON = Quantiles(
        1, 8, 15, 29, 73, 180, 490, 1_100, 2_300, 4_900, 14e3, 33e3, 52e3, 88e3, 340e3, 920e3
    )
    OFF = Quantiles(1, 1, 1, 1, 2, 5, 15, 59, 410, 1_900, 5_800, 11e3, 28e3, 41e3, 54e3, 260e3)
    SHARES = np.array([[0, 0.05, 0.25, 0.5, 0.75, 0.95, 1], [0.44, 0.59, 0.7, 0.77, 0.86, 0.99, 1]])

    def __init__(self, seed: int = 0) -> None:
        super().__init__(self.ON.mean, self.OFF.mean, seed)

    def time_available(self, devices: Ints) -> Floats:
        u = keyed_uniform(self.seed, 0, devices, Purpose.AVAILABLE, 1, 0)[:, 0]
        return np.asarray(np.interp(u, *self.SHARES))

    def _first(self, devices: Ints, u: Floats, off: Floats) -> Floats:
        first, second, chance = u
        part = self.time_available(devices)
        left = self.ON.at(first, by_length=True) * second
        gap = self._time_off(first[:, None], devices, by_length=True)[:, 0] * second
        here = chance < part
        return np.column_stack([np.where(here, left, 0.0), np.where(here, off, gap)])

    def _time_on(self, first: Floats, second: Floats, by_length: bool = False) -> Floats:
        return self.ON.at(first, by_length)

    def _time_off(self, first: Floats, devices: Ints, by_length: bool = False) -> Floats:
        part = self.time_available(devices)
        longer = (1 / part - 1) * self.ON.mean / self.OFF.mean
        return np.asarray(self.OFF.at(first, by_length) * longer[:, None])


class Intervals(Availability):
    """Known times: the intervals of each device, repeated after its period if it has one."""

    def __init__(
        self,
        intervals: Mapping[int, Sequence[tuple[float, float]]],
        periods: Mapping[int, float] | None = None,
    ) -> None:
        for device, own in intervals.items():
            times = [time for pair in own for time in pair]
            if not own or any(b <= a for a, b in own) or times != sorted(times):
                raise SalfError(
                    f"the intervals of device {device} must be in order and must not overlap."
                )
        self._own = {device: np.asarray(own, np.float64) for device, own in intervals.items()}
        self._periods = dict(periods or {})

    @classmethod
    def csv(cls, path: Path | str) -> "Intervals":
        """Read lines of device,start,end; devices are numbered from 0, times are in seconds."""
        own: dict[int, list[tuple[float, float]]] = {}
        for device, start, end in read_numbers(path, "device", "start", "end"):
            own.setdefault(int(device), []).append((start, end))
        return cls({device: sorted(pairs) for device, pairs in own.items()})

    def unknown(self, devices: int) -> list[int]:
        return [device for device in range(devices) if device not in self._own]

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        opens, closes = np.full(len(devices), np.inf), np.full(len(devices), np.inf)
        for place, (device, time) in enumerate(zip(devices.tolist(), times.tolist(), strict=True)):
            period = self._periods.get(device)
            passed = time // period * period if period else 0.0
            own = self._own.get(device, np.empty((0, 2))) + passed
            if period and own[-1, 1] <= time:
                own = own + period
            later = own[np.searchsorted(own[:, 1], time, side="right") :]
            if len(later):
                opens[place], closes[place] = later[0]
        return np.maximum(opens, times), closes


KINDS = (
    "always", "day-night", "sessions", "clients", "markov:ON,OFF", "by-labels:MEAN,SLOT", "FILE.csv"
)  # fmt: skip


def parse(spec: str, seed: int = 0) -> Availability:
    """Read an availability as people write it: one of `KINDS`."""
    kind, _, rest = spec.partition(":")
    plain: dict[str, Callable[..., Availability]]
    plain = {"day-night": DayAndNight, "sessions": sessions, "clients": Clients}
    if spec == "always":
        return Always()
    if spec in plain:
        return plain[spec](seed=seed)
    if kind in ("markov", "by-labels"):
        from salf.worlds.fleet.by_labels import ByLabels  # which builds on this module

        try:
            first, second = map(float, rest.split(","))
        except ValueError:
            raise SalfError(
                "write two numbers of seconds, on and off, as in markov:600,3000, or a part of the "
                f"users and the seconds of a slot, as in by-labels:0.1,1, not {spec!r}."
            ) from None
        return OnAndOff(first, second, seed) if kind == "markov" else ByLabels(first, second, seed)
    if spec.endswith(".csv"):
        return Intervals.csv(spec)
    raise unknown("availability", spec, KINDS)
