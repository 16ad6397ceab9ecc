"""When devices are available: as the time at which each is next, not as a yes or no to poll.

Times are seconds of the simulated clock. While a device is not available its work pauses. What a
device does is a function of (seed, device, time).
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
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
        now, left, done = np.full(len(devices), start), needed, np.full(needed.shape, np.inf)
        going = np.arange(len(devices))
        while len(going):
            opens, closes = self.window(devices[going], now)
            ends, waits = opens[:, None] + left, np.isinf(done[going])
            fits = ends <= closes[:, None]
            done[going] = np.where(waits & fits, ends - start, done[going])
            on = (waits & ~fits).any(axis=1) & np.isfinite(closes)
            left = left[on] - (closes[on] - opens[on])[:, None]
            going, now = going[on], closes[on]
        return done

    def time_available(self, devices: Ints) -> Floats:
        """The part of the time each device is available, next to the others of its fleet."""
        return np.ones(len(devices))

    def of(self, devices: Ints) -> "Availability":
        """The availability of users who have these devices."""
        return Assigned(self, devices)


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


class Assigned(Availability):
    """The availability of users, each with a device of its own."""

    def __init__(self, devices: Availability, device_of: Ints) -> None:
        self.devices, self.device_of, self.memory = devices, device_of, devices.memory

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


Block = tuple[Floats, Floats, Floats]  # when its intervals begin and end, and when it does


def first_after(
    draw: Callable[..., Block], devices: Ints, times: Floats, block: Ints, begin: Floats
) -> tuple[Floats, Floats]:
    """The first interval of each device that ends after a time, looked for block after block."""
    opens, closes = np.full((2, len(devices)), np.inf)
    going = np.arange(len(devices))
    while len(going):
        starts, ends, after = draw(devices[going], block, begin)
        later = ends > times[going, None]
        has, first = later.any(axis=1), later.argmax(axis=1)[:, None]
        opens[going[has]] = np.take_along_axis(starts, first, axis=1)[has, 0]
        closes[going[has]] = np.take_along_axis(ends, first, axis=1)[has, 0]
        going, block, begin = going[~has], block[~has] + 1, after[~has]
    return np.maximum(opens, times), closes


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
        self._begins: dict[int, list[float]] = {}  # of the blocks of each device that were drawn

    def __getstate__(self) -> dict[str, Any]:  # a copy need not know what was looked at
        return {**self.__dict__, "_begins": {}}

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        begins = [self._begins.setdefault(device, [0.0]) for device in devices.tolist()]
        pairs = zip(begins, times.tolist(), strict=True)
        block = [bisect_right(own, time) - 1 for own, time in pairs]
        begin = [own[number] for own, number in zip(begins, block, strict=True)]
        return first_after(self._block, devices, times, np.array(block), np.array(begin))

    def _block(self, devices: Ints, block: Ints, begin: Floats) -> Block:
        n = self.CYCLES
        u = keyed_uniform(self.seed, 0, devices, Purpose.AVAILABLE, 3 * n + 3, block[:, None] + 1)
        on = self._time_on(u[:, :n], u[:, n : 2 * n])
        off = self._time_off(u[:, 2 * n : -3], devices)
        new = block == 0
        on[new, 0], off[new, 0] = self._first(devices[new], u[new, -3:].T, off[new, 0])
        edges = begin[:, None] + np.stack([on, off], axis=2).reshape(-1, 2 * n).cumsum(axis=1)
        for device, number, end in zip(devices.tolist(), block.tolist(), edges[:, -1], strict=True):
            if len(own := self._begins[device]) == number + 1:
                own.append(end)
        return np.column_stack([begin, edges[:, 1:-1:2]]), edges[:, ::2], edges[:, -1]

    def _first(self, devices: Ints, u: Floats, off: Floats) -> tuple[Floats, Floats]:
        """The first times on and off, of which only what is left at time 0."""
        first, second, chance = u
        part = self.on / (self.on + self.off)
        # Of the session that is going on at time 0, long ones more likely, some is left.
        left = self._time_on(first, second, by_length=True)
        if self.log_sd is not None:
            left = left * chance / part
        # A device that is off has a session of no length, and then what is left of its break.
        return np.where(chance < part, left, 0.0), off

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

    def _first(self, devices: Ints, u: Floats, off: Floats) -> tuple[Floats, Floats]:
        first, second, chance = u
        here = chance < self.time_available(devices)
        left = self.ON.at(first, by_length=True) * second
        gap = self._time_off(first[:, None], devices, by_length=True)[:, 0] * second
        return np.where(here, left, 0.0), np.where(here, off, gap)

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
        self._own = {device: np.asarray(own, np.float64) for device, own in intervals.items()}
        self._periods = dict(periods or {})
        for device, own in self._own.items():
            if not own.size or (np.diff(own) <= 0).any() or (np.diff(own.ravel()) < 0).any():
                raise SalfError(
                    f"the intervals of device {device} must be in order and must not overlap."
                )

    @classmethod
    def csv(cls, path: Path | str) -> "Intervals":
        """Read lines of device,start,end; devices are numbered from 0, times are in seconds."""
        own: dict[int, list[tuple[float, float]]] = {}
        for device, start, end in read_numbers(path, "device", "start", "end"):
            own.setdefault(int(device), []).append((start, end))
        return cls({device: sorted(pairs) for device, pairs in own.items()})

    def check(self, devices: int) -> None:
        """Refuse so many devices if nothing is known of one."""
        if absent := [device for device in range(devices) if device not in self._own]:
            raise SalfError(
                f"{len(absent)} of {devices} devices have no intervals, such as device "
                f"{absent[0]} (numbered from 0): add the intervals in which each is available."
            )

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        opens, closes = np.full((2, len(devices)), np.inf)
        for place, (device, time) in enumerate(zip(devices.tolist(), times.tolist(), strict=True)):
            own, period = self._own.get(device, np.empty((0, 2))), self._periods.get(device)
            if period:
                own = own + time // period * period
                own = own + period * (own[-1, 1] <= time)
            later = own[np.searchsorted(own[:, 1], time, side="right") :]
            if len(later):
                opens[place], closes[place] = later[0]
        return np.maximum(opens, times), closes


class Slots(Availability):
    """Time is cut into slots; in each, a device is available with its own chance, independently.

    With a deadline of one slot this is Bernoulli participation, round by round.
    """

    AT_ONCE = 64  # slots drawn at a time

    def __init__(self, chances: Floats, slot: float, seed: int = 0) -> None:
        self.chances, self.slot, self.seed, self.memory = chances, slot, seed, slot

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        block = np.floor(times / self.slot).astype(np.int64) // self.AT_ONCE
        return first_after(self._block, devices, times, block, times)

    def _block(self, devices: Ints, block: Ints, begin: Floats) -> Block:
        n = self.AT_ONCE
        u = keyed_uniform(self.seed, block[:, None], devices, Purpose.AVAILABLE, n, 1)
        slot = block[:, None] * n + np.arange(n)
        here = u < self.chances[devices, None]
        ends = np.where(here, (slot + 1) * self.slot, -np.inf)
        return np.asarray(slot * self.slot, np.float64), ends, begin

    def time_available(self, devices: Ints) -> Floats:
        return np.asarray(self.chances[devices])


class ByLabels(Availability):
    """Users take part with chances that depend on the labels they hold, as in FedAU's experiments.

    `of_users` makes the availability. Each class has a weight, drawn from a Dirichlet law; a user's
    chance is the mean weight of its samples, scaled such that users of all classes alike have the
    chance `mean`, and at least `LEAST`. The constants are those of FedAU's code.
    """

    LEAST, ALPHA = 0.02, 0.1

    def __init__(self, mean: float, slot: float, seed: int = 0) -> None:
        if not 0 < mean <= 1 or not slot > 0:
            raise SalfError(
                "participation by labels needs a mean in (0, 1] and slots of more than 0 s, not "
                f"{mean} and {slot}."
            )
        self.mean, self.slot, self.seed = mean, slot, seed

    def of_users(self, mixes: Floats) -> Slots:
        """The availability of users with these mixes of classes, [users, classes]."""
        classes = mixes.shape[1]
        rng = np.random.default_rng([self.seed, Purpose.AVAILABLE])
        chances = self.mean * classes * (mixes @ rng.dirichlet(np.full(classes, self.ALPHA)))
        return Slots(np.clip(chances, self.LEAST, 1.0), self.slot, self.seed)

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        raise SalfError(
            "participation by labels depends on the users' data, which are not available here: "
            "use it in a run or a comparison."
        )

    def of(self, devices: Ints) -> Availability:
        """The same: chances go with users, whatever their devices."""
        return self


PLAIN: Mapping[str, Callable[..., Availability]]
PLAIN = {"day-night": DayAndNight, "sessions": sessions, "clients": Clients}
OF_TWO: Mapping[str, Callable[..., Availability]] = {"markov": OnAndOff, "by-labels": ByLabels}
KINDS = ("always", *PLAIN, "markov:ON,OFF", "by-labels:MEAN,SLOT", "FILE.csv")


def parse(spec: str, seed: int = 0) -> Availability:
    """Read an availability as people write it: one of `KINDS`."""
    kind, _, rest = spec.partition(":")
    if spec == "always":
        return Always()
    if spec in PLAIN:
        return PLAIN[spec](seed=seed)
    if kind in OF_TWO:
        try:
            first, second = map(float, rest.split(","))
        except ValueError:
            raise SalfError(
                "write two numbers of seconds, on and off, as in markov:600,3000, or a part of the "
                f"users and the seconds of a slot, as in by-labels:0.1,1, not {spec!r}."
            ) from None
        return OF_TWO[kind](first, second, seed)
    if spec.endswith(".csv"):
        return Intervals.csv(spec)
    raise unknown("availability", spec, KINDS)
