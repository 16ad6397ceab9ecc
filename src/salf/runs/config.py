"""The settings of a simulated run: those of any run, and the world that is made up for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from salf.common.errors import SalfError
from salf.runs.settings import Settings, Unset, setting
from salf.worlds import base as worlds
from salf.worlds.fleet import availability
from salf.worlds.fleet import named as fleets

if TYPE_CHECKING:
    from salf.stages.attacks import Attackers

CURVE = 60  # points of a curve over the simulated time, unless a run says otherwise


@dataclass(frozen=True)
class Config(Settings):
    """Everything a run depends on. Two runs of one config give the same numbers bit for bit."""

    cohort_by: Literal["uniform", "samples"] = setting("uniform")
    weigh: Literal["equally", "samples"] = setting("equally")
    depth: str = setting(
        "mixture",
    )
    stragglers: float = setting(0.9, least=0, most=1)
    fleet: str = setting(
        "",
    )
    availability: str = setting(
        "always",
    )
    reach: Literal["known", "counted"] = setting(
        "known",
    )
    pair: Literal["", "random", "labels", "size"] = setting(
        "",
    )
    attack: str = setting(
        "",
    )
    attackers: int = setting(Unset(1))
    seconds: float | None = setting(
        None,
        above=0,
    )
    eval_seconds: float = setting(0.0, least=0)
    device: str = setting("cpu")
    engine: str = setting(
        "auto",
    )
    # Part of the config, because sums are rounded differently with another number.
    threads: int = setting(0, least=0, most=1024)

    def __post_init__(self) -> None:
        if type(self.rounds) is Unset:  # with a time, the time is the limit
            object.__setattr__(self, "rounds", 0 if self.seconds is not None else int(self.rounds))
        super().__post_init__()
        least = 0 if self.seconds else 1
        if self.rounds < least:
            raise SalfError(f"rounds must be at least {least}, not {self.rounds}.")
        if self.cohort == "all" and self.cohort_by != "uniform":
            raise SalfError("cohort_by needs a cohort, such as cohort=100.")
        if self.eval_every and self.eval_seconds:
            raise SalfError("eval_every and eval_seconds cannot be combined: give one of them.")
        clocked = {
            "seconds": self.seconds,
            "eval_seconds": self.eval_seconds,
            "pair": self.pair,
            "availability": self.availability != "always",
            "deadline": self.deadline,
            "batches equal-time": self.batches == "equal-time",
        }
        if not self.fleet and (name := next((n for n, value in clocked.items() if value), "")):
            raise SalfError(f"{name} needs a fleet, such as fleet='phones'.")
        if self.fleet:
            fleets.check(self.fleet)
            self.make_deadline()
            if not self.availability.endswith(".csv"):
                availability.parse(self.availability)
        worlds.check(self.depth)
        if not self.attack and type(self.attackers) is not Unset:
            raise SalfError("attackers needs an attack, such as attack='flip'.")
        self.make_attackers()  # which checks them
        if self.engine != "auto":
            from salf import engines

            engines.find(self.engine)

    def make_attackers(self) -> "Attackers | None":
        """The users that attack, if there are any."""
        if not self.attack:
            return None
        from salf.stages.attacks import Attack, Attackers

        attack = Attack.parse(self.attack, self.seed)
        return None if attack is None else Attackers(attack, self.users, self.attackers)

    def eval_interval(self) -> float:
        """The simulated seconds between evaluations; 0 if they go by rounds."""
        if self.eval_seconds or self.eval_every or self.seconds is None:
            return self.eval_seconds
        return self.seconds / CURVE

    def changed(self, **settings: Any) -> Self:
        """A config with other settings; those that are None stay as they are."""
        if settings.get("seconds") is not None and settings.get("rounds") is None:
            settings["rounds"] = 0  # the time is the limit
        return super().changed(**settings)
