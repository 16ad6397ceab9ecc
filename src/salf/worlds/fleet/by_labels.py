"""Users that take part with a chance that depends on their labels, as in FedAU's experiments."""

from dataclasses import dataclass

import numpy as np

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints
from salf.core.draws import KeyedRounds, Purpose
from salf.worlds.fleet.availability import Availability


@dataclass(frozen=True, eq=False)
class SlotAvailability(Availability):
    """Time is cut into slots; in each, a device is available with its own chance, independently.

    With a deadline of one slot this is Bernoulli participation, round by round.
    """

    chances: Floats
    slot: float  # seconds
    seed: int = 0

    AT_ONCE = 64  # slots drawn at a time

    @property
    def memory(self) -> float:  # type: ignore[override]
        return self.slot

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        opens, closes = np.full(len(devices), np.inf), np.full(len(devices), np.inf)
        current = np.floor(times / self.slot).astype(np.int64)
        # Rounding must not give a slot that ends now.
        current = np.where((current + 1) * self.slot <= times, current + 1, current)
        going = np.arange(len(devices))
        while len(going):
            block, place = np.divmod(current[going], self.AT_ONCE)
            draws = KeyedRounds(self.seed, block)
            u = draws.uniform(devices[going], Purpose.AVAILABLE, self.AT_ONCE)
            here = u < self.chances[devices[going], None]
            here &= np.arange(self.AT_ONCE) >= place[:, None]
            first = here.argmax(axis=1)
            has = here[np.arange(len(going)), first]
            slot = (block * self.AT_ONCE + first)[has]
            opens[going[has]] = np.maximum(slot * self.slot, times[going[has]])
            closes[going[has]] = (slot + 1) * self.slot
            current[going] = (block + 1) * self.AT_ONCE
            going = going[~has]
        return opens, closes

    def time_available(self, devices: Ints) -> Floats:
        return np.asarray(self.chances[devices])


@dataclass(frozen=True)
class ByLabels(Availability):
    """The chances follow from the labels that users hold: `of_users` makes the availability.

    Each class has a weight, drawn from a Dirichlet law; a user's chance is the mean weight of its
    samples, scaled such that users of all classes alike have the chance `mean`, and at least
    `least`. The defaults are those of FedAU's code.
    """

    mean: float = 0.1
    slot: float = 1.0
    seed: int = 0
    least: float = 0.02
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.mean <= 1 or not self.slot > 0:
            raise SalfError(
                "participation by labels needs a mean in (0, 1] and slots of more than 0 s, not "
                f"{self.mean} and {self.slot}."
            )

    def of_users(self, mixes: Floats) -> SlotAvailability:
        """The availability of users with these mixes of classes, [users, classes]."""
        classes = mixes.shape[1]
        rng = np.random.default_rng([self.seed, Purpose.AVAILABLE])
        weights = rng.dirichlet(np.full(classes, self.alpha))
        chances = self.mean * classes * (mixes @ weights)
        return SlotAvailability(np.clip(chances, self.least, 1.0), self.slot, self.seed)

    def window(self, devices: Ints, times: Floats) -> tuple[Floats, Floats]:
        raise SalfError(
            "participation by labels depends on the users' data, which are not available here: "
            "use it in a run or a comparison."
        )

    def of(self, devices: Ints) -> Availability:
        """The same: chances go with users, whatever their devices."""
        return self
