"""T_max of every round: constant, a schedule, or adapted while a run goes on."""

from dataclasses import dataclass
from math import exp, inf
from typing import Any

from salf.common.errors import SalfError
from salf.common.files import read_numbers
from salf.common.registry import duration

REACH = 0.7  # what `auto` aims for, unless told otherwise


@dataclass(frozen=True)
class DeadlineSchedule:
    """T_1, T_2, ...; the last one for all rounds after it."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        for each in self.seconds or (0.0,):
            if not 0 < each < inf:
                raise SalfError(f"the deadline must be a positive time in seconds, not {each!r}.")

    @property
    def changes(self) -> bool:
        """Whether rounds may differ."""
        return len(self.seconds) > 1

    def of(self, t: int, current: float) -> float:
        """T_max of round t, whatever is kept between rounds."""
        return self.seconds[min(t, len(self.seconds)) - 1]


@dataclass(frozen=True)
class Auto:
    """T_max such that users reach, on average, the part `reach` of their layers.

    It is kept between rounds, and multiplied by exp(GAIN (reach - reached)) after each of them:
    stochastic approximation of the deadline at which the expectation is met, with a constant gain,
    so that it follows devices that change. In the simulator it starts where the fleet's law says.
    """

    reach: float = REACH

    GAIN, changes = 0.2, True

    def __post_init__(self) -> None:
        if not 0 < self.reach < 1:
            raise SalfError(f"the target reach of auto must be between 0 and 1, not {self.reach}.")

    def of(self, t: int, current: float) -> float:
        """What is kept."""
        return current

    def after(self, current: float, reach: float) -> float:
        """What to keep after a round in which users reached this part of their layers."""
        return current * exp(self.GAIN * (self.reach - reach))


Deadline = DeadlineSchedule | Auto


def read(value: Any) -> Any:
    """A setting as people write it: 2s, auto, auto:0.8, FILE.csv; a number is seconds."""
    if isinstance(value, str) and (value.partition(":")[0] == "auto" or value.endswith(".csv")):
        return value
    return duration(value)


def parse(setting: float | str) -> Deadline:
    """The deadline that people write so."""
    setting = read(setting)
    if not isinstance(setting, str):
        return DeadlineSchedule((float(setting),))
    kind, _, value = setting.partition(":")
    if kind != "auto":
        return DeadlineSchedule(tuple(each for (each,) in read_numbers(setting, "deadline")))
    try:
        reach = float(value or REACH)
    except ValueError:
        raise SalfError(f"write the target reach as in auto:0.8, not {setting!r}.") from None
    return Auto(reach)


def missing() -> SalfError:
    """The error where a fleet has no deadline."""
    return SalfError(
        "this method needs a deadline: set one, such as deadline='2s' or deadline='auto'; "
        "`salf fleet preview` shows which deadline gives which reach."
    )
