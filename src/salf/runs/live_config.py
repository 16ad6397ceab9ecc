"""The settings of a live run: those of any run, and those of real users with a real clock."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from salf.common.errors import SalfError
from salf.common.registry import duration
from salf.runs.config import Config
from salf.runs.settings import Settings, check_names, setting

Backend = Literal["ray", "flower"]


@dataclass(frozen=True)
class LiveConfig(Settings):
    """A config of real users with a real clock. Times are in seconds, or texts such as 50ms."""

    grace: float | None = setting(
        None,
        duration,
        least=0,
    )
    slow: str = setting(
        "",
    )
    max_norm: float | None = setting(None, above=0)
    backend: Backend = setting("ray")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise SalfError(f"rounds must be at least 1, not {self.rounds}.")
        self.make_deadline()
        slowness(self.slow, self.users)
        method = self.make_method()
        if why := method.asks.simulated_only:
            raise SalfError(f"{method.name} runs in the simulator only: {why}.")
        if self.deadline is None and not method.asks.waits:
            raise SalfError("a live run needs a deadline: set one, such as deadline='50ms'.")

    def simulated(self, **settings: Any) -> Config:
        """The federation without a clock, whose arrivals are made up or recorded."""
        clockless = {"deadline": None, "batches": "auto"}
        return Config(**{**self.table(Settings), **clockless, **settings})


def live(config: Settings, **settings: Any) -> LiveConfig:
    """A federation with real users; settings that are None stay as they are."""
    if not isinstance(config, LiveConfig):
        for name in ("fleet", "weigh", "cohort_by", "attack"):  # what reality cannot be asked for
            if (value := getattr(config, name)) != getattr(Config, name):
                raise SalfError(f"{name} {value} is for simulated users only: leave it out.")
    given = {name: value for name, value in settings.items() if value is not None}
    check_names(given, LiveConfig)
    shared = config.table(type(config) if isinstance(config, LiveConfig) else Settings)
    if given.get("method", config.method) != config.method:
        shared["options"] = {}  # they were another method's
    return LiveConfig(**{**shared, **given})


def slowness(spec: str, users: int) -> list[float]:
    """How slow each user is made: `0.5x8` is half of them 8 times as slow; several with commas."""
    factors = [1.0] * users
    first = 0
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = re.fullmatch(r"(\d*\.?\d+)x(\d*\.?\d+)", part)
        if match is None:
            raise SalfError(
                f"cannot read {part!r}: write SHARExFACTOR, such as 0.5x8 to make half of the "
                "users 8 times slower."
            )
        share, factor = float(match[1]), float(match[2])
        if share > 1 or factor < 1:
            raise SalfError(f"in {part!r} the share must be at most 1, and the factor at least 1.")
        count = int(share * users + 0.5)
        if first + count > users:
            raise SalfError(f"{spec!r} slows down more users than the {users} there are.")
        factors[first : first + count] = [factor] * count
        first += count
    return factors
