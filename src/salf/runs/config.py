"""A config: settings that fit together, and what follows from them."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any

import tomli_w

from salf import methods
from salf.common.errors import SalfError, unknown
from salf.core import schedules
from salf.methods import Method
from salf.runs.settings import PAPER_MODELS, Settings, key
from salf.worlds import base as worlds
from salf.worlds.fleet import deadlines
from salf.worlds.fleet import named as fleets

if TYPE_CHECKING:
    from salf.core.server import Optimiser
    from salf.stages.robust import Robust

# This module does not wait for torch: what needs torch to be checked is imported when it is.

CURVE = 60  # points of a curve over the simulated time, unless a run says otherwise


@dataclass(frozen=True)
class Config(Settings):
    """Everything a run depends on. Two runs of one config give the same numbers bit for bit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 0 if self.seconds else 1
        if self.rounds < least:
            raise SalfError(f"rounds must be at least {least}, not {self.rounds}.")
        if self.local_epochs and self.local_steps > 1:
            raise SalfError("local-steps and local-epochs cannot be combined: give one of them.")
        if self.client_lr is not None and not 0 < self.client_lr < 1e30:
            raise SalfError(f"client-lr must be positive, not {self.client_lr}.")
        if "average" in self.options:
            raise SalfError("average is a setting, not an option of the method: use --average.")
        if not 0 <= self.stragglers <= 1:
            raise SalfError(f"stragglers must be a ratio in [0, 1], not {self.stragglers}.")
        if not 0 <= self.validation < 1:
            raise SalfError(f"validation must be a share in [0, 1), not {self.validation}.")
        if self.cohort == "all" and self.cohort_by != "uniform":
            raise SalfError("cohort-by needs a cohort, as in --cohort 100.")
        self.cohort_size()  # which checks it
        self._check_clock()
        self._check_robust()
        if not self.rounds and str(self.lr).startswith("cosine"):
            raise SalfError("a cosine learning rate needs to know the last round: give --rounds.")
        schedules.schedule(self.lr, self.rounds or 1)
        worlds.check(self.depth, self.users, self.stragglers)
        self._check_names()
        made = self.make_method()
        # As the method has them, since the command line gives them as text.
        typed = {name: getattr(made, name.replace("-", "_")) for name in self.options}
        object.__setattr__(self, "options", typed)
        self.check_reach(made)

    def _check_robust(self) -> None:
        """Enough users for a majority, and attacks that there are."""
        if (rule := self.make_robust()) is not None and self.users < rule.needed:
            raise SalfError(
                f"to tolerate {self.tolerate} of its users, --robust {self.robust} needs at least "
                f"{rule.needed}, not {self.users}."
            )
        if self.compress:
            from salf.core.compression import Compression

            Compression.parse(self.compress)
        if self.attack:
            from salf.stages.attacks import Attack, Attackers

            if (attack := Attack.parse(self.attack)) is not None:
                Attackers(attack, self.users, self.attackers)

    def _check_clock(self) -> None:
        """Settings that need a clock, or that only a clock without a fleet, a live one, has."""
        if self.fleet:
            fleets.check(self.fleet)
            if self.deadline is not None:
                deadlines.parse(self.deadline)
        if self.batches == "equal-time" and self.local_epochs:
            raise SalfError(
                "batches equal-time does not work with local epochs, which take as long with any "
                "batch size: use --local-steps."
            )
        if self.eval_every and self.eval_seconds:
            raise SalfError("eval-every and eval-seconds cannot be combined: give one of them.")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise SalfError(f"seconds must be a positive time, not {self.seconds}.")
        given = {
            "seconds": self.seconds,
            "eval-seconds": self.eval_seconds,
            "pair": self.pair,
            "availability": self.availability != "always",
            **self._needs_fleet(),
        }
        if not self.fleet and (name := next((n for n, value in given.items() if value), "")):
            raise SalfError(f"{name} needs a fleet, such as --fleet phones.")

    def check_reach(self, method: Method) -> None:
        """Refuse to learn what the method does not use."""
        if self.reach == "learned" and not method.asks.reach:
            raise SalfError(
                f"{method.name} with average {method.average} does not use p_l: leave out reach."
            )

    def check_deadline(self) -> None:
        """Refuse to run a method without the deadline it needs; a plan or preview finds one."""
        if self.fleet and self.deadline is None and self.make_method().asks.deadline:
            raise deadlines.missing()

    def first_deadline(self) -> float | None:
        """T_max of round 1, as far as it is known: not if it is found during the run."""
        if self.deadline is None:
            return None
        return deadlines.parse(self.deadline).of(1, 0.0) or None

    def eval_interval(self) -> float:
        """The simulated seconds between evaluations; 0 if they go by rounds."""
        if self.eval_seconds or self.eval_every or self.seconds is None:
            return self.eval_seconds
        return self.seconds / CURVE

    def batches_for(self, method: Method) -> str:
        """How the batches of a method are sized: equal or equal-time."""
        if self.batches != "auto":
            return self.batches
        fits = method.asks.stands_in and self._has_devices() and not self.local_epochs
        return "equal-time" if fits else "equal"

    def equal_time(self) -> bool:
        """Whether batches are sized for equal time, for the method that the config names."""
        return self.batches_for(self.make_method()) == "equal-time"

    def _has_devices(self) -> bool:
        return bool(self.fleet)

    def _needs_fleet(self) -> dict[str, object]:
        return {
            "deadline": self.deadline,
            "batches equal-time": self.batches == "equal-time",
            "reach learned": self.reach == "learned",
        }

    def _check_names(self) -> None:
        if self.model not in PAPER_MODELS:
            from salf import models

            models.find(self.model)
        if self.engine != "auto":
            from salf import engines

            engines.find(self.engine)
        if self.server != "sgd" or {self.beta1, self.beta2, self.epsilon} != {None}:
            self.make_optimiser()
        self.given_layers()

    def cohort_size(self) -> int:
        """How many users take part in a round."""
        users = self.users
        if self.cohort == "all":
            return users
        if not isinstance(self.cohort, str):
            if 0 < self.cohort < 1:
                return max(1, round(self.cohort * users))
            if 1 <= self.cohort <= users and self.cohort == int(self.cohort):
                return int(self.cohort)
        raise SalfError(
            f"cohort must be all, a share below 1, or a whole number from 1 to {users} (users), "
            f"not {self.cohort}."
        )

    def make_optimiser(self) -> "Optimiser":
        """The server's optimiser, with its settings."""
        from salf.core.server import make_optimiser

        settings = {name: getattr(self, name) for name in ("beta1", "beta2", "epsilon")}
        default = next(each.default for each in fields(Config) if each.name == "momentum")
        if self.server == "sgd" or self.momentum != default:
            settings["momentum"] = self.momentum
        return make_optimiser(self.server, settings)

    def make_robust(self) -> "Robust | None":
        """The rule that bad users are tolerated by; None where all users are trusted."""
        if self.robust in ("auto", "none"):
            return None
        from salf.stages.robust import Robust

        return Robust(self.robust, self.tolerate)

    def make_method(self) -> Method:
        """The method, with its options."""
        return methods.method(self.method, average=self.average, **self.options)

    def given_layers(self) -> list[str | list[str]] | None:
        """The layers by name; None where the model says what they are."""
        if not self.layers:
            return None
        from salf.core.layers import parse_layers

        return parse_layers(self.layers)

    def to_toml(self) -> str:
        """The complete config, as a file that `salf run` takes."""
        tables = ("options", "given", "files")
        table = {key(s.name): getattr(self, s.name) for s in fields(self) if s.name not in tables}
        # TOML has no null: a setting that is None is left out, an option is written as text.
        options = {name: "none" if v is None else v for name, v in self.options.items()}
        known = {name: value for name, value in table.items() if value is not None}
        more = {name: each for name in ("given", "files") if (each := getattr(self, name))}
        return tomli_w.dumps({**known, "options": options, **more})

    def changed(self, **settings: Any) -> "Config":
        """The same with other settings; those that are None stay as they are."""
        given = {name: value for name, value in settings.items() if value is not None}
        check_names(given, type(self))
        if given.get("method", self.method) != self.method and "options" not in given:
            given["options"] = {}  # they were another method's
        if "seconds" in given and "rounds" not in given:
            given["rounds"] = 0  # the time is the limit
        return replace(self, **given)

    def differences(self, other: "Config") -> list[str]:
        """The keys in which two configs differ."""
        ours, theirs = self.table(), other.table()
        found = [key(n) for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
        changed = [
            n for n in {**self.files, **other.files} if self.files.get(n) != other.files.get(n)
        ]
        return [n for n in found if n != "files"] + [
            f"the contents of its {n} file" for n in changed
        ]

    def table(self) -> dict[str, Any]:
        """All settings by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def refuse_deadline(method: Method) -> None:
    """Refuse a deadline that was asked for if the method's rounds end without one.

    FedAvg's have none either, but it may be given one: other methods beside it need it.
    """
    if method.asks.clock:
        raise SalfError(f"{method.name} decides itself when a round ends: leave out the deadline.")


def check_names(settings: Iterable[str], kind: type[Config]) -> None:
    """Refuse a setting that this kind of config does not have."""
    known = {each.name for each in fields(kind)}
    for name in settings:
        if name not in known:
            raise unknown("setting", key(name), map(key, known))
