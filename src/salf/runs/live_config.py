"""The settings of a live run: those of any run, and those of real users with a real clock."""

from dataclasses import dataclass
from typing import Any, Literal

from salf import methods
from salf.common.errors import SalfError
from salf.common.options import duration
from salf.runs.config import Config
from salf.runs.settings import Settings, check_names, names_of, setting
from salf.worlds.fleet import deadlines

Backend = Literal["ray", "flower"]


@dataclass(frozen=True)
class LiveConfig(Settings):
    """A config of real users with a real clock. Times are in seconds, or texts such as 50ms."""

    grace: float | None = setting(
        None, "Time for messages after T_max; by default, learned from recent rounds.", duration
    )
    slow: str = setting(
        "",
        "Slow users: 0.5x8 makes half of them 8 times slower; commas combine, as in "
        "0.25x4,0.25x16.",
    )
    max_norm: float | None = setting(
        None, "Reject updates with a layer gradient above this norm; by default, learned."
    )
    backend: Backend = setting("ray", "ray (rounds of milliseconds) | flower (rounds of seconds)")

    def __post_init__(self) -> None:
        super().__post_init__()
        from salf.live.inspection import check_max_norm
        from salf.live.rounds import Grace
        from salf.live.slow import slowness

        if self.rounds < 1:
            raise SalfError(f"rounds must be at least 1, not {self.rounds}.")
        self.make_deadline()
        check_max_norm(self.max_norm)
        Grace(self.grace)  # which checks it
        slowness(self.slow, self.users)
        if self.attack and self.compress and self.backend == "flower":
            raise SalfError("on Flower, attack= and compress= cannot be combined: leave one out.")
        method = methods.find(self.method)
        if method.simulated_only:
            raise SalfError(f"{method.name} runs in the simulator only: {method.simulated_only}.")
        if self.deadline is None and not method.waits:
            raise SalfError("a live run needs a deadline: set one, such as deadline='50ms'.")

    def make_deadline(self) -> deadlines.Deadline | None:
        """T_max of every round; None if rounds wait for everybody."""
        return None if self.deadline is None else deadlines.parse(self.deadline)

    @property
    def learns_reach(self) -> bool:
        """Whether p_l follows from each user's reach: always if the deadline changes."""
        return self.reach == "learned" or isinstance(self.deadline, str)

    @property
    def has_devices(self) -> bool:
        return True

    def simulated(self, **settings: Any) -> Config:
        """The same federation without a clock, whose arrivals are made up or recorded."""
        shared = {name: getattr(self, name) for name in names_of(Settings)}
        shared |= {"deadline": None, "batches": "auto"}
        if self.reach == "learned":  # from times
            shared["reach"] = "known"
        return Config(**{**shared, **settings})


def live(config: Settings, **settings: Any) -> LiveConfig:
    """The same federation with real users; settings that are None stay as they are."""
    given = {name: value for name, value in settings.items() if value is not None}
    check_names(given, LiveConfig)
    if isinstance(config, LiveConfig):
        return config.changed(**given)
    for name in ("fleet", "weigh", "cohort_by"):  # what reality would be asked to be otherwise
        if (value := getattr(config, name)) != getattr(Config, name):
            raise SalfError(f"{name} {value} is for simulated users only: leave it out.")
    shared = {name: getattr(config, name) for name in names_of(Settings)}
    return LiveConfig(**{**shared, **given})
