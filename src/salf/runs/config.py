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

    cohort_by: Literal["uniform", "samples"] = setting(
        "uniform", "How a cohort is drawn: uniform | samples (users with more samples more often)"
    )
    weigh: Literal["equally", "samples"] = setting(
        "equally", "Weight of users: equally | samples (in proportion to their number of samples)"
    )
    depth: str = setting(
        "mixture",
        "Distribution of depth: mixture (a ratio of stragglers with uniform depth; the others "
        "finish) "
        "| mixture:P1,... (with the probabilities of a straggler's depth 1..L+1) | uniform "
        "(assumption AS4) | fixed:D1,D2,... | probabilities:P1,... | package.module:Name",
    )
    stragglers: float = setting(0.9, "Ratio of stragglers, in [0, 1].", least=0, most=1)
    fleet: str = setting(
        "",
        "The users' devices, for a simulated clock instead of --depth: phones | pis | "
        "microcontrollers | slow-classes | phones:speed=2,links=none | FILE.csv | "
        "fedscale:FOLDER | package.module:Name",
    )
    availability: str = setting(
        "always",
        "When the fleet's devices are available: always | day-night | sessions | clients | "
        "markov:ON,OFF (mean seconds) | by-labels:MEAN,SLOT (in every slot of SLOT seconds, each "
        "user is available with a probability that depends on its labels, MEAN on average) | "
        "FILE.csv",
    )
    reach: Literal["known", "counted"] = setting(
        "known",
        "How likely each user is to reach a layer, for methods that weigh by it: known (from the "
        "distribution of the fleet or of --depth) | counted (the share of rounds in which it did)",
    )
    pair: Literal["", "random", "labels", "size"] = setting(
        "",
        "Which users have the slow devices: random (for a file: in its order) | labels "
        "(users of the first classes) | size (users with few samples); default: the fleet's.",
    )
    attack: str = setting(
        "",
        "What bad users do, to test --robust: alie | alie-own (knows its own updates only) | ipm "
        "| min-max | min-sum | mimic | label-flip | backdoor | flip | random | constant | "
        "large-first; with a strength, as in flip:2, and @first, @last or @rare layers only.",
    )
    attackers: int = setting(
        Unset(1), "Number of users that attack, with --attack; these are the last users."
    )
    seconds: float | None = setting(
        None,
        "With a fleet, the simulated time after which a run ends; --rounds, if also given, is then "
        "the maximum number of rounds.",
        above=0,
    )
    eval_seconds: float = setting(
        0.0, "With a fleet, simulated seconds between evaluations, instead of rounds.", least=0
    )
    device: str = setting(
        "cpu", "Where the model and the data are: cpu | cuda | cuda:1 | mps | ..."
    )
    engine: str = setting(
        "auto",
        "auto | fused (nn.Sequential) | grouped (any module) | stacked (local steps) | loop (one "
        "user at a time) | package.module:Name",
    )
    # Part of the config, because sums are rounded differently with another number.
    threads: int = setting(
        0, "CPU threads; by default $OMP_NUM_THREADS, or all cores.", least=0, most=1024
    )

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
