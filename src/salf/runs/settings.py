"""Settings, each written once: its name, type, default, help and limits; and what runs share.

TOML, `salf.train` and the command line's options and help are made of them, so this does not wait
for torch: what needs torch to be checked is imported when it is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
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


def setting(
    default: Any, help: str, read: Callable[[Any], Any] | None = None, **limits: float
) -> Any:
    """A field with the help that the command line shows, how its text is read, and its limits."""
    return field(default=default, metadata={"help": help, "read": read, **limits})


class Unset(int):
    """A number that nobody gave."""


@dataclass(frozen=True)
class Settings:
    """Everything that simulated and live runs have in common."""

    data: str = setting(
        "mnist",
        "mnist | fashion-mnist | cifar10 | digits | synthetic | folder:PATH | package.module:Name",
    )
    data_dir: str = setting("", "Folder to look in for the data set's files.")
    split: str = setting(
        "iid", "How samples are split among users: iid | dirichlet:0.1 | shards:2 | shared:100"
    )
    model: str = setting("mlp", f"{' | '.join(PAPER_MODELS)} | package.module:Name")
    layers: str = setting(
        "",
        "Layers by name, from input to output, such as stem,body+norm,head; `salf layers` shows "
        "them.",
    )
    method: str = setting("salf", f"{' | '.join(methods.METHODS)} | package.module:Name")
    average: str = setting(
        "reached",
        "reached: over the users that reached a layer, as the equations say | all: over all users, "
        "as the authors' script does",
    )
    users: int = setting(30, "Number of users.", least=1)
    cohort: float | str = setting(
        "all", "Users that take part in a round: all | a number, such as 100 | a share, such as 0.1"
    )
    deadline: float | str | None = setting(
        None,
        "T_max, the time a user has per round: 50ms | 2s | auto | auto:0.8 (the share of layers to "
        "reach) | FILE.csv (with a column deadline). FedAvg needs none.",
        deadlines.read,
    )
    batches: Literal["auto", "equal", "equal-time"] = setting(
        "auto",
        "equal: batches of --batch-size | equal-time: in proportion to the speed of a user's "
        "device, so that a batch takes all users about the same time | auto: equal-time for "
        "salf-recall with a fleet or live, otherwise equal",
    )
    compress: str = setting(
        "",
        "How users compress the layers they send: fp16 | qsgd:BITS | topk:FRACTION (the "
        "rest is added to the next update). Default: no compression.",
    )
    robust: Literal["auto", "none", "mixed", "median"] = setting(
        "auto",
        "How the updates of a layer are combined if some users may send bad ones: none (the "
        "method's mean) | mixed (every user's momentum becomes the mean of those nearest to it, "
        "then their mean) | median (of momenta) | auto (none; in live runs, mixed on Flower and if "
        "users join from other machines).",
    )
    tolerate: int = setting(
        1,
        "Number of bad users that --robust tolerates; it needs at least 2 x this number + 1 users.",
        least=1,
    )
    rounds: int = setting(Unset(250), "Number of rounds.")
    lr: float | str = setting(
        0.05, "Learning rate: 0.05 | cosine:RATE | step:RATE,EVERY,FACTOR | theorem:RHO_C,RHO_S"
    )
    server: str = setting("sgd", "The server's optimiser: sgd | adam | yogi | adagrad")
    momentum: float = setting(0.5, "Momentum of server sgd.")
    beta1: float | None = setting(None, "beta1 of server adam, yogi and adagrad (0.9; adagrad: 0).")
    beta2: float | None = setting(None, "beta2 of server adam and yogi (0.99).")
    epsilon: float | None = setting(None, "epsilon of server adam, yogi and adagrad (0.001).")
    batch_size: int = setting(
        16, "Samples per user and local step; a user that has fewer uses all of them.", least=1
    )
    local_steps: int = setting(1, "Gradient steps per user and round.", least=1)
    local_epochs: int = setting(
        0, "Passes of each user through its data per round, instead of local steps.", least=0
    )
    client_lr: float | None = setting(
        None,
        "Learning rate of the users' local steps; --lr then multiplies their mean update (1 for "
        "FedAvg). By default, users use --lr.",
        above=0,
        below=1e30,
    )
    validation: float = setting(
        1 / 6,
        "Share of the training data held out to measure the accuracy during training.",
        least=0,
        below=1,
    )
    seed: int = setting(0, "Seed of all random draws.", least=0, most=2**63 - 1)
    eval_every: int = setting(
        0, "Rounds between evaluations; 0 chooses an interval that keeps their cost small.", least=0
    )
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
