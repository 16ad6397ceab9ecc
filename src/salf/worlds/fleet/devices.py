"""A fleet: the devices of all users, each with a speed, a link and times at which it is there."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from salf.common.errors import SalfError, unknown
from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed, Purpose, normal
from salf.worlds.fleet import availability as availabilities
from salf.worlds.fleet.availability import Always, Availability, Intervals
from salf.worlds.fleet.jitter import Jitter, LogNormal

if TYPE_CHECKING:
    from torch import nn

    from salf.worlds.fleet.cost import Cost
    from salf.worlds.fleet.preview import Preview

Pair = Literal["random", "labels", "size"]


@dataclass(frozen=True, eq=False)
class DeviceClass:
    """How long the typical device of a class takes for the parts of a training step.

    A layer of a device of this speed takes, for its forward and for its backward pass,

        (launch * products + parameter * trained parameters + multiply_add * multiply-adds) / speed

    seconds, where only the last term grows with the rows of a batch, and only the backward pass
    writes parameters. Constants are numbers, or arrays [L], [2, 1] or [2, L], if they differ
    between layers or between the forward and the backward pass.
    """

    unit: str  # of the speed, as in messages: a device of speed 3 is "3 typical phones"
    multiply_add: float | Floats  # seconds
    launch: float | Floats = 0.0  # seconds of a matrix product or convolution, whatever its size
    parameter: float | Floats = 0.0  # seconds to write the gradient and the new value of one
    large: float = 1.0  # how many others one of a convolution larger than 3 x 3 takes
    depthwise: float = 1.0  # how many others one of a depthwise convolution takes
    layer: float = 0.0  # seconds of a layer per row, whatever is in it

    def seconds(self, cost: "Cost") -> tuple[Floats, Floats]:
        """The fixed part and that of a row of each layer's forward and backward pass: [2, L]."""
        for each in (self.multiply_add, self.launch, self.parameter):
            if np.ndim(each) and np.shape(each)[-1] not in (1, cost.layers):
                raise SalfError(
                    f"the fleet was calibrated for a model of {np.shape(each)[-1]} layers, and "
                    f"this one has {cost.layers}."
                )
        slow = (self.large - 1) * cost.large + (self.depthwise - 1) * cost.depthwise
        counted = cost.multiply_adds + slow
        written = np.array([[0.0], [1.0]]) * self.parameter * cost.trained
        fixed = np.zeros_like(counted) + self.launch * cost.products + written
        row = self.multiply_add * counted
        row[1] += self.layer
        if not (row + fixed).sum() > 0:
            raise SalfError(
                "no multiply-adds are counted in this model (matrix products, convolutions and "
                'attention are), so its time is unknown; use a fleet with counted="layers".'
            )
        return fixed, row

    @property
    def about(self) -> str:
        """The constants in words, for a page."""
        parts = [
            f"{self.launch * 1e3:.2g} ms per matrix product or convolution" * bool(self.launch),
            f"{self.parameter * 1e9:.3g} ns per trained parameter" * bool(self.parameter),
            f"{self.multiply_add * 1e9:.2g} ns per multiply-add of a row",
        ]
        return f"A step takes {' + '.join(filter(None, parts))} on one of the {self.unit}"

    def work(self, cost: "Cost") -> Floats:
        """What is counted as work of a row, [2, L]: multiply-adds, or else layers."""
        return self.seconds(cost)[1] if self.layer else cost.multiply_adds


MULTIPLY_ADDS = DeviceClass("multiply-adds per second", 1.0)
LAYERS = DeviceClass("layers of 16 rows per second", 0.0, layer=1 / 16)
COUNTED = {"multiply-adds": MULTIPLY_ADDS, "layers": LAYERS}
Counted = Literal["multiply-adds", "layers"] | DeviceClass


class Fleet:
    """The devices of a federation: arrays with an entry for each, and laws of all of them.

    `Fleet("phones", users=30, seed=0)` creates a fleet as the setting names it (docs/fleets.md),
    with options such as `links="none"` or in the name, as in `Fleet("phones:links=none", ...)`.
    `Fleet("fleet.csv")` reads a file with a line per device, which more `users` have in turn.
    `Fleet.of(speed=[...])` creates a fleet from speeds. A device depends only on the seed and its
    number. Both take `availability`, as the setting of that name or as an object of
    `salf.worlds.fleet.availability`.
    """

    name: str
    speed: Floats  # compared with the device's class
    up: Floats  # bytes a second; inf without a link that takes time
    down: Floats
    latency: Floats  # seconds that a message takes, whatever its size
    jitter: Jitter
    availability: Availability
    pair: Pair  # how users get their devices, unless a run says otherwise
    kinds: tuple[DeviceClass, ...]
    kind: Ints  # which of them each one is

    def __init__(
        self,
        name: str,
        users: int | None = None,
        seed: int = 0,
        availability: str | Availability = "always",
        **options: Any,
    ) -> None:
        from salf.worlds.fleet.named import make, with_options

        what, options = with_options(name, options)
        seed = int(options.pop("seed", seed))
        made = make(what, users, seed, options).available(availability, seed)
        vars(self).update(vars(made), name=name)

    @classmethod
    def of(
        cls,
        speed: Sequence[float] | Floats,
        *,
        jitter: float | Sequence[float] | Jitter = 0.0,
        up: float | Sequence[float] | Floats = np.inf,
        down: float | Sequence[float] | Floats = np.inf,
        latency: float | Sequence[float] = 0.0,
        availability: str | Availability = "always",
        counted: Counted | Sequence[DeviceClass] = "multiply-adds",
        pair: Pair = "random",
        name: str = "by hand",
    ) -> "Fleet":
        """A fleet from the `speed` of every device, in multiply-adds per second.

        `up` and `down` are in bytes per second, `latency` is in seconds, and `jitter` is a law of
        `fleet.jitter` or the sigma of a log-normal one. With `counted="layers"`, speeds are in
        layers per second; with a `DeviceClass`, or one for each device, they are relative to it.
        """
        fleet = cls.__new__(cls)
        fleet.name, fleet.pair, fleet.availability = name, pair, Always()
        fleet.speed = np.asarray(speed, np.float64).reshape(-1)

        def each(values: Any) -> Floats:
            return np.broadcast_to(np.asarray(values, np.float64), fleet.speed.shape).copy()

        if isinstance(counted, str) and counted not in COUNTED:
            raise unknown("way to count", counted, COUNTED)
        kinds = COUNTED[counted] if isinstance(counted, str) else counted
        kinds = [kinds] if isinstance(kinds, DeviceClass) else kinds
        fleet.kinds = tuple(dict.fromkeys(kinds))
        try:
            fleet.up, fleet.down, fleet.latency = each(up), each(down), each(latency)
            fleet.jitter = jitter if isinstance(jitter, Jitter) else LogNormal(each(jitter))
            fleet.kind = each([fleet.kinds.index(kind) for kind in kinds]).astype(np.int64)
        except ValueError:
            raise SalfError(
                f"give one value, or one for each of the {len(fleet)} devices."
            ) from None
        if not len(fleet) or not np.isfinite([fleet.speed, fleet.latency]).all():
            raise SalfError("a fleet needs at least one device, and finite speeds and latencies.")
        for values in ("speed", "up", "down"):
            if not (getattr(fleet, values) > 0).all():
                raise SalfError(f"{values} must be positive for every device.")
        if not (fleet.latency >= 0).all():
            raise SalfError("latency must be at least 0 for every device.")
        return fleet.available(availability)

    def __len__(self) -> int:
        return len(self.speed)

    def __repr__(self) -> str:
        slow, usual, fast = np.percentile(self.speed, [5, 50, 95])
        units = " or ".join(kind.unit for kind in self.kinds)
        return (
            f"Fleet({self.name!r}: {len(self)} devices, {usual:.3g} {units} at the median, "
            f"{slow:.3g} to {fast:.3g} from the 5th to the 95th percentile)"
        )

    def changed(self, **more: Any) -> "Fleet":
        """This fleet with other arrays or laws."""
        fleet = copy(self)
        vars(fleet).update(more)
        return fleet

    def available(self, availability: str | Availability, seed: int = 0) -> "Fleet":
        """These devices, available at the times of this law."""
        if isinstance(availability, str):
            availability = availabilities.parse(availability, seed)
        if availability.always:
            return self
        if not self.availability.always:
            raise SalfError(
                f"the fleet {self.name} has an availability of its own: leave out availability."
            )
        if isinstance(availability, Intervals):
            availability.check(len(self))
        return self.changed(availability=availability)

    def of_users(self, devices: Ints) -> "Fleet":
        """A fleet of users who have these devices."""
        own = vars(self).items()
        arrays = {name: each[devices] for name, each in own if isinstance(each, np.ndarray)}
        jitter, availability = self.jitter.of(devices), self.availability.of(devices)
        return self.changed(jitter=jitter, availability=availability, **arrays)

    @property
    def pace(self) -> Floats:
        """The speed of each device, such that those of several classes can be compared."""
        usual = np.array([np.mean(kind.multiply_add) for kind in self.kinds])
        return self.speed if len(usual) == 1 else np.asarray(self.speed / usual[self.kind])

    def paired(self, by: Ints) -> "Fleet":
        """These devices for users sorted by a number of each: the smallest gets the slowest."""
        order = np.argsort(self.pace, kind="stable")[np.argsort(np.argsort(by, kind="stable"))]
        return self.of_users(order)

    def slowest(self, part: float = 0.1) -> Ints:
        """The users with the slowest devices, at least one.

        Where some devices are available less often than others, those come first.
        """
        count = max(1, round(part * len(self)))
        available = self.availability.time_available(np.arange(len(self)))
        return np.sort(np.lexsort((self.pace, available))[:count])

    def preview(
        self, model: "nn.Module", deadline: float | str | None = None, **settings: Any
    ) -> "Preview":
        """Which layers users would reach and how long rounds would take, without training.

        Settings are `example` (a batch of inputs), `layers`, `batch_size` and `local_steps`.
        """
        from salf.worlds.fleet.preview import of_model

        return of_model(self, model, deadline, **settings)


def drawn_normal(seed: int, users: int, n: int) -> Floats:
    """`n` standard normal numbers of every device: [n, users]."""
    u = Keyed(seed, 0).uniform(np.arange(users), Purpose.DEVICE, 2 * n)
    return normal(u[:, :n], u[:, n:]).T
