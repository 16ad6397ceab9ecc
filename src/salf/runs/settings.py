"""Settings, each written once: its name, type, default and limits; and what runs share.

TOML, `salf.train` and the command line's options and help are made of them, so this does not wait
for torch: what needs torch to be checked is imported when it is.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

import tomli_w

from salf import methods
from salf.common.errors import SalfError, unknown
from salf.common.registry import converted, within
from salf.core.server import schedule
from salf.methods import Method
from salf.worlds.fleet import deadlines

if TYPE_CHECKING:
    from salf.core.server import Optimiser
    from salf.data.sampling import LocalWork
    from salf.stages.robust import Robust

PAPER_MODELS = ("mlp", "cnn", "vgg11", "vgg13", "vgg16", "vgg19")
TABLES = ("options", "given", "files")  # settings that have entries of their own


def setting(default: Any, read: Callable[[Any], Any] | None = None, **limits: float) -> Any:
    """A field of which help.toml tells, with how its text is read and its limits."""
    return field(default=default, metadata={"read": read, **limits})


@cache
def helps() -> dict[str, str]:
    """What the command line says of each setting."""
    text = files("salf.runs").joinpath("help.toml").read_text(encoding="utf-8")
    known = {"models": " | ".join(PAPER_MODELS), "methods": " | ".join(methods.METHODS)}
    return {name: about.format(**known) for name, about in tomllib.loads(text).items()}


class Unset(int):
    """A number that nobody gave."""


@dataclass(frozen=True)
class Settings:
    """Everything that simulated and live runs have in common."""

    data: str = setting(
        "mnist",
    )
    data_dir: str = setting("")
    split: str = setting("iid")
    model: str = setting("mlp")
    layers: str = setting(
        "",
    )
    method: str = setting("salf")
    average: str = setting(
        "reached",
    )
    users: int = setting(30, least=1)
    cohort: float | str = setting("all")
    deadline: float | str | None = setting(
        None,
        deadlines.read,
    )
    batches: Literal["auto", "equal", "equal-time"] = setting(
        "auto",
    )
    compress: str = setting(
        "",
    )
    robust: Literal["auto", "none", "mixed", "median"] = setting(
        "auto",
    )
    tolerate: int = setting(
        1,
        least=1,
    )
    rounds: int = setting(Unset(250))
    lr: float | str = setting(0.05)
    server: str = setting("sgd")
    momentum: float = setting(0.5)
    beta1: float | None = setting(None)
    beta2: float | None = setting(None)
    epsilon: float | None = setting(None)
    batch_size: int = setting(16, least=1)
    local_steps: int = setting(1, least=1)
    local_epochs: int = setting(0, least=0)
    client_lr: float | None = setting(
        None,
        above=0,
        below=1e30,
    )
    validation: float = setting(
        1 / 6,
        least=0,
        below=1,
    )
    seed: int = setting(0, least=0, most=2**63 - 1)
    eval_every: int = setting(0, least=0)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    # Python objects in place of what the settings name (`salf.train`), each by a fingerprint.
    given: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)  # digests of those that settings name

    def __post_init__(self) -> None:
        read_fields(self)
        if self.local_epochs and self.local_steps > 1:
            raise SalfError("local_steps and local_epochs cannot be combined: give one of them.")
        if "average" in self.options:
            raise SalfError("average is a setting, not an option of the method: use average=.")
        if self.batches == "equal-time" and self.local_epochs:
            raise SalfError(
                "batches equal-time does not work with local epochs, which take as long with any "
                "batch size: use local_steps=."
            )
        self.cohort_size()  # which checks it
        if self.compress:
            from salf.core.compression import Compression

            Compression.parse(self.compress)
        if not self.rounds and str(self.lr).startswith("cosine"):
            raise SalfError("a cosine learning rate needs to know the last round: give rounds=.")
        schedule(self.lr, self.rounds or 1)
        if self.model not in PAPER_MODELS:
            from salf import models

            models.find(self.model)
        self.given_layers()
        made = self.make_method()
        # As the method has them, since the command line gives them as text.
        typed = {name: getattr(made, name.replace("-", "_")) for name in self.options}
        object.__setattr__(self, "options", typed)
        if (rule := self.make_robust()) is not None:
            if self.users < rule.needed:
                raise SalfError(
                    f"to tolerate {self.tolerate} of its users, robust={self.robust!r} needs at "
                    f"least {rule.needed}, not {self.users}."
                )
            rule.check(made)
        settled = self.server == "sgd" and {self.beta1, self.beta2, self.epsilon} == {None}
        # It takes torch to be made.
        if settled and not made.defines("refuses") and not made.average_models:
            return
        if why := made.refuses(self.make_optimiser()):
            raise SalfError(f"{made.name} {why}.")

    def batches_for(self, method: Method) -> str:
        """How the batches of a method are sized: equal or equal-time."""
        if self.batches != "auto":
            return self.batches
        has_devices = getattr(self, "fleet", True)  # as all real users have
        fits = method.asks.stands_in and has_devices and not self.local_epochs
        return "equal-time" if fits else "equal"

    def equal_time(self) -> bool:
        """Whether batches are sized for equal time, for the method that the config names."""
        return self.batches_for(self.make_method()) == "equal-time"

    def cohort_size(self) -> int:
        """How many users take part in a round."""
        users, cohort = self.users, self.cohort
        if cohort == "all":
            return users
        if isinstance(cohort, float | int) and 0 < cohort < 1:
            return max(1, round(cohort * users))
        if isinstance(cohort, float | int) and 1 <= cohort <= users and cohort == int(cohort):
            return int(cohort)
        raise SalfError(
            f"cohort must be all, a share below 1, or a whole number from 1 to {users} (users), "
            f"not {cohort}."
        )

    def local_work(self) -> "LocalWork":
        """What every user does in a round."""
        from salf.data.sampling import LocalWork

        return LocalWork(self.local_steps, self.local_epochs, self.client_lr)

    def make_deadline(self) -> deadlines.Deadline | None:
        """T_max of every round; None if rounds wait for everybody."""
        return None if self.deadline is None else deadlines.parse(self.deadline)

    def make_optimiser(self) -> "Optimiser":
        """The server's optimiser, with its settings."""
        from salf.core.server import make_optimiser

        settings = {name: getattr(self, name) for name in ("beta1", "beta2", "epsilon")}
        if self.server == "sgd" or self.momentum != Settings.momentum:
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
        """All settings, as a file that the command line takes."""
        # TOML has no null: a setting that is None is left out, an option is written as text.
        table = {
            key(name): value
            for name, value in self.table().items()
            if name not in TABLES and type(value) not in (NoneType, Unset)
        }
        if "model" in self.given:  # which is there
            del table["model"]
        table["options"] = {name: "none" if v is None else v for name, v in self.options.items()}
        return tomli_w.dumps(
            table | {name: each for name in ("given", "files") if (each := getattr(self, name))}
        )

    def changed(self, **settings: Any) -> Self:
        """A config with other settings; those that are None stay as they are."""
        given = {name: value for name, value in settings.items() if value is not None}
        check_names(given, type(self))
        if given.get("method", self.method) != self.method and "options" not in given:
            given["options"] = {}  # they were another method's
        return replace(self, **given)

    def differences(self, other: "Settings") -> list[str]:
        """The settings in which two configs differ."""
        ours, theirs = self.table(), other.table()
        found = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n) and n != "files"]
        changed = [
            n for n in {**self.files, **other.files} if self.files.get(n) != other.files.get(n)
        ]
        return [*map(key, found), *(f"the contents of its {n}" for n in changed)]

    def table(self, kind: type[Any] | None = None) -> dict[str, Any]:
        """All settings by name, or those that a kind of config has."""
        return {name: getattr(self, name) for name in names_of(kind or type(self))}


def read_fields(given: Any) -> None:
    """Give the fields of a frozen dataclass of settings their types, and check their limits."""
    hints = get_type_hints(type(given))
    for each in fields(given):
        object.__setattr__(given, each.name, _read(each, getattr(given, each.name), hints))


def _read(setting: Field[Any], value: Any, hints: Mapping[str, Any]) -> Any:
    kind, about = hints[setting.name], setting.metadata
    if about.get("read") and value is not None:
        value = about["read"](value)
    if type(value) is not kind or kind is float:  # floats must be finite
        value = converted(value, kind, setting.name)
    return within(value, about, setting.name)


def typed(kind: type[Settings], name: str, value: Any) -> Any:
    """A value as the setting of this name has it."""
    check_names([name], kind)
    return _read(kind.__dataclass_fields__[name], value, get_type_hints(kind))


def key(name: str) -> str:
    """A setting's name as people write it, in TOML and on the command line."""
    return name.replace("_", "-")


def names_of(kind: type[Any]) -> list[str]:
    """The settings of a kind of config."""
    return [each.name for each in fields(kind)]


def check_names(
    settings: Iterable[str], kind: type[Settings], said: Callable[[str], str] = str
) -> None:
    """Refuse a setting that this kind of config does not have; `said` is how it is called."""
    for name in settings:
        if name not in names_of(kind):
            known = (said(each) for each in names_of(kind) if each not in ("given", "files"))
            raise unknown("setting", said(name), known)


def refuse_with_fleet(given: Iterable[str]) -> None:
    """Refuse settings that say how deep users get where their devices do."""
    for name in ("stragglers", "depth"):
        if name in given:
            raise SalfError(
                f"the fleet and the deadline determine how far users get: leave out {name}=."
            )


def refuse_deadline(method: Method) -> None:
    """Refuse a deadline that was asked for if the method's rounds end without one.

    FedAvg's have none either, but it may be given one: other methods beside it need it.
    """
    if method.asks.clock:
        raise SalfError(f"{method.name} decides itself when a round ends: leave out deadline=.")
