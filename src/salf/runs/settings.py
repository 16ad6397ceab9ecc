"""The settings of a run, each written once: its name, type, default, help and limits.

The command line makes its options, and their help, of them, so this does not wait for torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_type_hints

from salf import methods
from salf.common.errors import SalfError
from salf.common.options import converted
from salf.worlds.fleet import deadlines

PAPER_MODELS = ("mlp", "cnn", "vgg11", "vgg13", "vgg16", "vgg19")


def setting(
    default: Any,
    help: str,
    read: Callable[[Any], Any] | None = None,
    *,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """A field with the help that the command line shows, how its text is read, and its limits."""
    about = {"help": help, "read": read, "least": least, "most": most}
    return field(default=default, metadata=about)


class _Default(int):
    """A number that nobody gave."""


@dataclass(frozen=True)
class Settings:
    """The values, each of its type and within its limits."""

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
    users: int = setting(30, "Number of users.", least=1)
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
        "Flower and if users join from other machines). Bad updates that do not stand out get "
        "through.",
    )
    tolerate: int = setting(
        1,
        "Number of bad users that --robust tolerates; it needs at least 2 x this number + 1 users.",
        least=1,
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
    )
    validation: float = setting(
        1 / 6, "Share of the training data held out to measure the accuracy during training."
    )
    seed: int = setting(0, "Seed of all random draws.", least=0, most=2**63 - 1)
    eval_every: int = setting(
        0, "Rounds between evaluations; 0 chooses an interval that keeps their cost small.", least=0
    )
    eval_seconds: float = setting(
        0.0, "With a fleet, simulated seconds between evaluations, instead of rounds.", least=0
    )
    device: str = setting("cpu", "cpu, cuda, ...")
    engine: str = setting(
        "auto",
        "auto | fused (nn.Sequential) | grouped (any module) | stacked (local steps) | loop (one "
        "user at a time) | package.module:Name",
    )
    # Part of the config, because sums are rounded differently with another number.
    threads: int = setting(
        0, "CPU threads; by default $OMP_NUM_THREADS, or all cores.", least=0, most=1024
    )
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
            value = converted(read(value) if read else value, kinds[each.name], key(each.name))
            object.__setattr__(self, each.name, value)
        for each in fields(self):
            _check_limits(each, getattr(self, each.name))


def _check_limits(setting: Field[Any], value: Any) -> None:
    name, limits = key(setting.name), setting.metadata
    least, most = limits.get("least"), limits.get("most")
    if least is not None and value < least:
        needed = "not be negative" if least == 0 else f"be at least {least}"
        raise SalfError(f"{name} must {needed}, not {value}.")
    if most is not None and value > most:
        raise SalfError(f"{name} must be at most {most}, not {value}.")


def key(name: str) -> str:
    """A setting's name as people write it, in TOML and on the command line."""
    return name.replace("_", "-")
