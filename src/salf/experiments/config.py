"""A run's settings, each written once: the same in TOML, in Python and on the command line."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import tomli_w

from salf import methods, schedules, worlds
from salf.errors import SalfError, unknown
from salf.fleet import deadlines
from salf.fleet import named as fleets
from salf.methods import Method
from salf.options import converted, duration

if TYPE_CHECKING:
    from salf.server import Optimiser

# This module does not wait for torch: the command line makes its options, and their help, of it.
# What needs torch to be checked is imported when it is.

CURVE = 60  # points of a curve over the simulated time, unless a run says otherwise
PAPER_MODELS = ("mlp", "cnn", "vgg11", "vgg13", "vgg16", "vgg19")


def setting(default: Any, help: str, read: Callable[[Any], Any] | None = None) -> Any:
    """A field with the help that the command line shows, and how its text is read."""
    return field(default=default, metadata={"help": help, "read": read})


class _Default(int):
    """A number that nobody gave."""


@dataclass(frozen=True)
class Config:
    """Everything a run depends on. Two runs of one config give the same numbers bit for bit."""

    data: str = setting(
        "mnist",
        "mnist | fashion-mnist | cifar10 | digits | synthetic | idx:PATH | folder:PATH | "
        "package.module:Name",
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
    depth: str = setting(
        "mixture",
        "Distribution of depth: mixture (a ratio of stragglers with uniform depth; the others "
        "finish) "
        "| mixture:P1,... (with the probabilities of a straggler's depth 1..L+1) | uniform "
        "(assumption AS4) | fixed:D1,D2,... | probabilities:P1,... | package.module:Name",
    )
    users: int = setting(30, "Number of users.")
    cohort: float | str = setting(
        "all", "Users that take part in a round: all | a number, such as 100 | a share, such as 0.1"
    )
    cohort_by: Literal["uniform", "samples"] = setting(
        "uniform", "How a cohort is drawn: uniform | samples (users with more samples more often)"
    )
    weigh: Literal["equally", "samples"] = setting(
        "equally", "Weight of users: equally | samples (in proportion to their number of samples)"
    )
    stragglers: float = setting(0.9, "Ratio of stragglers, in [0, 1].")
    fleet: str = setting(
        "",
        "The users' devices, for a simulated clock instead of --depth: phones | "
        "edge | lab | slow-classes | phones:speed=1e6,jitter=0.3 | FILE.csv | package.module:Name",
    )
    availability: str = setting(
        "always",
        "When the fleet's devices are available: always | day-night | sessions | "
        "markov:ON,OFF (mean seconds) | by-labels:MEAN,SLOT (in every slot of SLOT seconds, each "
        "user is available with a probability that depends on its labels, MEAN on average) | "
        "FILE.csv",
    )
    pair: Literal["", "random", "labels", "size"] = setting(
        "",
        "Which users have the slow devices: random (for a file: in its order) | labels "
        "(users of the first classes) | size (users with few samples); default: the fleet's.",
    )
    deadline: float | str | None = setting(
        None,
        "T_max, the time a user has per round: 50ms | 2s | auto | auto:0.8 (the share of layers to "
        "reach) | FILE.csv (with a column deadline). FedAvg needs none.",
        deadlines.read,
    )
    reach: Literal["known", "learned", "counted"] = setting(
        "known",
        "How p_l and each user's reach are computed: known (from the distribution of the fleet or "
        "of --depth; live, the share of rounds in which nobody reached the layer) | learned (with "
        "a fleet or live, from each user's depths so far) | counted (the share of rounds in which "
        "each user reached the layer, for methods that weigh by it)",
    )
    batches: Literal["auto", "equal", "equal-time"] = setting(
        "auto",
        "equal: batches of --batch-size | equal-time: in proportion to the speed of a user's "
        "device, so that a batch takes all users about the same time | auto: equal-time for "
        "salf-recall with a fleet or live, otherwise equal",
    )
    compress: str = setting(
        "",
        "How users compress the layers they send: fp16 | qsgd:BITS | topk:SHARE (what is not sent "
        "is added to the next update). Default: no compression.",
    )
    robust: Literal["auto", "none", "trimmed", "median", "clip"] = setting(
        "auto",
        "How the updates of a layer are combined if some users may send bad ones: none (the "
        "method's mean) | trimmed (the mean without the values farthest from the median) | median "
        "| clip (norms are clipped to the median norm) | auto (none; in live runs, trimmed on "
        "Flower and if users join from other machines)",
    )
    tolerate: int = setting(
        1,
        "Number of bad users that --robust tolerates. A layer is updated only if at least 2 x "
        "this number + 1 users sent it.",
    )
    attack: str = setting(
        "",
        "What bad users send, to test --robust: flip | random | constant | large-first. A number "
        "sets the norm: flip:2 sends twice that of an honest gradient (default: 45 times; "
        "large-first: 100 times).",
    )
    attackers: int = setting(
        1, "Number of users that attack, with --attack; these are the last users."
    )
    rounds: int = setting(_Default(250), "Number of rounds.")
    seconds: float | None = setting(
        None,
        "With a fleet, the simulated time after which a run ends; --rounds, if also given, is then "
        "the maximum number of rounds.",
    )
    lr: float | str = setting(
        0.05, "Learning rate: 0.05 | cosine:RATE | step:RATE,EVERY,FACTOR | theorem:RHO_C,RHO_S"
    )
    server: str = setting("sgd", "The server's optimiser: sgd | adam | yogi | adagrad")
    momentum: float = setting(0.5, "Momentum of server sgd.")
    beta1: float | None = setting(None, "beta1 of server adam, yogi and adagrad (0.9; adagrad: 0).")
    beta2: float | None = setting(None, "beta2 of server adam and yogi (0.99).")
    epsilon: float | None = setting(None, "epsilon of server adam, yogi and adagrad (0.001).")
    batch_size: int = setting(
        16, "Samples per user and local step; a user that has fewer uses all of them."
    )
    local_steps: int = setting(1, "Gradient steps per user and round.")
    local_epochs: int = setting(
        0, "Passes of each user through its data per round, instead of local steps."
    )
    client_lr: float | None = setting(
        None,
        "Learning rate of the users' local steps; --lr then multiplies their mean update (1 for "
        "FedAvg). By default, users use --lr.",
    )
    validation: float = setting(
        1 / 6, "Share of the training data held out to measure the accuracy during training."
    )
    seed: int = setting(0, "Seed of all random draws.")
    eval_every: int = setting(
        0, "Rounds between evaluations; 0 chooses an interval that keeps their cost small."
    )
    eval_seconds: float = setting(
        0.0, "With a fleet, simulated seconds between evaluations, instead of rounds."
    )
    device: str = setting("cpu", "cpu, cuda, ...")
    engine: str = setting(
        "auto",
        "auto | fused (nn.Sequential) | grouped (any module) | stacked (local steps) | loop (one "
        "user at a time) | package.module:Name",
    )
    # Part of the config, because sums are rounded differently with another number.
    threads: int = setting(0, "CPU threads; by default $OMP_NUM_THREADS, or all cores.")
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    # Python objects in place of what the settings name (`salf.train`), each by a fingerprint.
    given: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)  # digests of those that settings name

    def __post_init__(self) -> None:
        if type(self.rounds) is _Default:  # with a time, the time is the limit
            object.__setattr__(self, "rounds", 0 if self.seconds is not None else int(self.rounds))
        kinds = get_type_hints(type(self))
        for each in fields(self):
            value, read = getattr(self, each.name), each.metadata.get("read")
            value = converted(read(value) if read else value, kinds[each.name], _key(each.name))
            object.__setattr__(self, each.name, value)
        least = ("users", "batch_size", "local_steps", *(() if self.seconds else ("rounds",)))
        for name in least:
            if getattr(self, name) < 1:
                raise SalfError(f"{_key(name)} must be at least 1, not {getattr(self, name)}.")
        for name in ("seed", "eval_every", "threads", "local_epochs", "rounds", "eval_seconds"):
            if getattr(self, name) < 0:
                raise SalfError(f"{_key(name)} must not be negative, not {getattr(self, name)}.")
        for name, most in (("seed", 2**63 - 1), ("threads", 1024)):
            if getattr(self, name) > most:
                raise SalfError(f"{name} must be at most {most}, not {getattr(self, name)}.")
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
        if self.tolerate < 1:
            raise SalfError(
                f"tolerate must be at least 1, not {self.tolerate}; --robust none trusts all users."
            )
        if self.robust not in ("auto", "none") and self.users < 2 * self.tolerate + 1:
            raise SalfError(
                f"to tolerate {self.tolerate} of its users, --robust {self.robust} needs at least "
                f"{2 * self.tolerate + 1}, not {self.users}."
            )
        if self.compress:
            from salf.compression import Compression

            Compression.parse(self.compress)
        if self.attack:
            from salf.attacks import Attack, Attackers

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
        if self.reach == "learned" and not method.uses_reach:
            raise SalfError(
                f"{method.name} with average {method.average} does not use p_l: leave out reach."
            )

    def check_deadline(self) -> None:
        """Refuse to run a method without the deadline it needs; a plan or preview finds one."""
        if self.fleet and self.deadline is None and self.make_method().has_deadline:
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

    def batches_for(self, method: Method | type[Method]) -> str:
        """How the batches of a method are sized: equal or equal-time."""
        if self.batches != "auto":
            return self.batches
        fits = method.equal_time and self._has_devices() and not self.local_epochs
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
        from salf.server import make_optimiser

        settings = {name: getattr(self, name) for name in ("beta1", "beta2", "epsilon")}
        default = next(each.default for each in fields(Config) if each.name == "momentum")
        if self.server == "sgd" or self.momentum != default:
            settings["momentum"] = self.momentum
        return make_optimiser(self.server, settings)

    def make_method(self) -> Method:
        """The method, with its options."""
        return methods.method(self.method, average=self.average, **self.options)

    def given_layers(self) -> list[str | list[str]] | None:
        """The layers by name; None where the model says what they are."""
        if not self.layers:
            return None
        from salf.layers import parse_layers

        return parse_layers(self.layers)

    def to_toml(self) -> str:
        """The complete config, as a file that `salf run` takes."""
        tables = ("options", "given", "files")
        table = {_key(s.name): getattr(self, s.name) for s in fields(self) if s.name not in tables}
        # TOML has no null: a setting that is None is left out, an option is written as text.
        options = {name: "none" if v is None else v for name, v in self.options.items()}
        known = {key: value for key, value in table.items() if value is not None}
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
        found = [_key(n) for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
        changed = [
            n for n in {**self.files, **other.files} if self.files.get(n) != other.files.get(n)
        ]
        return [n for n in found if n != "files"] + [
            f"the contents of its {n} file" for n in changed
        ]

    def table(self) -> dict[str, Any]:
        """All settings by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


Backend = Literal["ray", "flower"]


@dataclass(frozen=True)
class LiveConfig(Config):
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

        if self.fleet:
            raise SalfError("a live run has no simulated devices: leave out --fleet.")
        self.make_deadline()
        check_max_norm(self.max_norm)
        Grace(self.grace)  # which checks it
        slowness(self.slow, self.users)
        if self.weigh != "equally" or self.cohort_by != "uniform":
            raise SalfError(
                "a live server does not know how many samples its users have: weigh and cohort-by "
                "cannot be samples."
            )
        if self.attack and self.compress and self.backend == "flower":
            raise SalfError("on Flower, --attack and --compress cannot be combined: leave one out.")
        method = methods.find(self.method)
        if method.simulated_only:
            raise SalfError(f"{method.name} runs in the simulator only: {method.simulated_only}.")
        if self.deadline is None and not method.waits:
            raise SalfError("a live run needs a deadline: add --deadline, such as --deadline 50ms.")

    def make_deadline(self) -> deadlines.Deadline | None:
        """T_max of every round; None if rounds wait for everybody."""
        return None if self.deadline is None else deadlines.parse(self.deadline)

    @property
    def learns_reach(self) -> bool:
        """Whether p_l follows from each user's reach: always if the deadline changes."""
        return self.reach == "learned" or isinstance(self.deadline, str)

    def _has_devices(self) -> bool:
        return True

    def _needs_fleet(self) -> dict[str, object]:
        return {}


def refuse_deadline(method: Method) -> None:
    """Refuse a deadline that was asked for if the method's rounds end without one.

    FedAvg's have none either, but it may be given one: other methods beside it need it.
    """
    if not method.has_deadline and not method.waits:
        raise SalfError(f"{method.name} decides itself when a round ends: leave out the deadline.")


def live(config: Config, **settings: Any) -> LiveConfig:
    """The same federation with real users; settings that are None stay as they are."""
    given = {name: value for name, value in settings.items() if value is not None}
    check_names(given, LiveConfig)
    return LiveConfig(**{**config.table(), **given})


def load_config(source: str) -> Config:
    """A preset by name, or a TOML file by path."""
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if (path / "config.toml").is_file():
        raise SalfError(f"{source} is a run's folder; pass its config: {path / 'config.toml'}.")
    if path.suffix != ".toml":
        raise unknown("preset", source, [*PRESETS, "CONFIG.toml"])
    try:
        return read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SalfError(
            f"there is no config file {source!r}; pass one, or a preset: {', '.join(PRESETS)}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SalfError(f"cannot read the config {source!r}: {error}.") from None


def read_toml(text: str) -> Config:
    """What `Config.to_toml` wrote, or a person. A live run's settings make a `LiveConfig`."""
    table = tomllib.loads(text)
    known = {_key(each.name): each.name for each in fields(LiveConfig)}
    settings = {known.get(key, key): value for key, value in table.items()}
    check_names(settings, LiveConfig)
    of_both = {each.name for each in fields(Config)}
    return Config(**settings) if settings.keys() <= of_both else LiveConfig(**settings)


def check_names(settings: Iterable[str], kind: type[Config]) -> None:
    """Refuse a setting that this kind of config does not have."""
    known = {each.name for each in fields(kind)}
    for name in settings:
        if name not in known:
            raise unknown("setting", _key(name), map(_key, known))


def simulated(config: Config) -> Config:
    """The config, unless it is that of a live run."""
    if isinstance(config, LiveConfig):
        raise SalfError("this is the config of a live run: use `salf live` or `salf replay`.")
    return config


def _key(name: str) -> str:
    return name.replace("_", "-")


_CIFAR = Config(data="cifar10", model="vgg11", rounds=1500, lr=0.05, validation=0.2, eval_every=50)
# The paper's settings, and those of the data set that is part of the package.
PRESETS: Mapping[str, Config] = {
    "mnist-mlp": Config(data="mnist", model="mlp", rounds=250, lr=0.05),
    "mnist-cnn": Config(data="mnist", model="cnn", rounds=150, lr=0.1),
    **{f"cifar-vgg{n}": replace(_CIFAR, model=f"vgg{n}") for n in (11, 13, 16, 19)},
    # Not the paper's. FedAvg's held-out accuracy is best at this rate, of 0.02 to 0.8.
    "digits-mlp": Config(data="digits", model="mlp", rounds=250, lr=0.3),
    # Not the paper's. Slow users hold classes that nobody else has (docs/fleets.md).
    "slow-classes": Config(
        data="mnist",
        model="mlp",
        split="shards:1",
        fleet="slow-classes",
        deadline=2.0,
        rounds=400,
        lr=0.05,
    ),
}
