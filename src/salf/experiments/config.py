"""A run's settings: complete, checked, and the same in TOML, in Python and on the command line."""

import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from salf import depth, methods, server
from salf.engines import ENGINES
from salf.errors import SalfError, unknown
from salf.models import PAPER_MODELS


@dataclass(frozen=True)
class Config:
    """Everything a run depends on. Two runs of one config give the same numbers bit for bit."""

    data: str = "mnist"
    data_dir: str = ""
    split: str = "iid"
    model: str = "mlp"
    method: str = "salf"
    average: str = "reached"
    depth: str = "mixture"
    users: int = 30
    stragglers: float = 0.9
    rounds: int = 250
    lr: float | str = 0.05
    momentum: float = 0.5
    batch_size: int = 16
    validation: float = 1 / 6  # the share of the training data held back for the curve
    seed: int = 0
    eval_every: int = 0  # 0: as often as leaves evaluation a small part of the run
    device: str = "cpu"
    engine: str = "auto"
    threads: int = (
        0  # 0: as many as the machine says; sums are rounded differently with another number
    )
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_type(setting, getattr(self, setting.name))
        for name in ("users", "rounds", "batch_size"):
            if getattr(self, name) < 1:
                raise SalfError(f"{_key(name)} must be at least 1, not {getattr(self, name)}.")
        for name in ("seed", "eval_every", "threads"):
            if getattr(self, name) < 0:
                raise SalfError(f"{_key(name)} must not be negative, and is {getattr(self, name)}.")
        for name, most in (("seed", 2**63 - 1), ("threads", 1024)):
            if getattr(self, name) > most:
                raise SalfError(f"{name} must be at most {most}, not {getattr(self, name)}.")
        if "average" in self.options:
            raise SalfError("average is a setting of its own, not an option of the method.")
        if not 0 <= self.stragglers <= 1:
            raise SalfError(f"stragglers must be a ratio in [0, 1], not {self.stragglers}.")
        if not 0 <= self.validation < 1:
            raise SalfError(f"validation must be a share in [0, 1), not {self.validation}.")
        if self.model not in PAPER_MODELS and ":" not in self.model:
            raise unknown("model", self.model, [*PAPER_MODELS, "package.module:Name"])
        if self.engine not in ENGINES and self.engine != "auto":
            raise unknown("engine", self.engine, [*ENGINES, "auto"])
        server.schedule(self.lr, self.rounds)
        self.make_method()
        if self.depth in ("mixture", "uniform"):
            depth.parse(self.depth, self.users, 1, self.stragglers)
        elif self.depth.partition(":")[0] not in ("mixture", "fixed", "probabilities"):
            raise unknown("distribution of depth", self.depth, depth.DEPTHS)

    def make_method(self) -> methods.Method:
        """The method, with its options."""
        return methods.method(self.method, average=self.average, **self.options)

    def to_toml(self) -> str:
        """The complete config, as a file that `salf run` takes."""
        table = {_key(s.name): getattr(self, s.name) for s in fields(self) if s.name != "options"}
        return tomli_w.dumps({**table, "options": dict(self.options)})

    def changed(self, **settings: Any) -> "Config":
        """The same with other settings; those that are None stay as they are."""
        given = {name: value for name, value in settings.items() if value is not None}
        if given.get("method", self.method) != self.method and "options" not in given:
            given["options"] = {}  # they were another method's
        return replace(self, **given)

    def differences(self, other: "Config") -> list[str]:
        """The keys in which two configs differ."""
        return [
            _key(s.name) for s in fields(self) if getattr(self, s.name) != getattr(other, s.name)
        ]


def load_config(source: str) -> Config:
    """A preset by name, or a TOML file by path."""
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if (path / "config.toml").is_file():
        raise SalfError(f"{source} is a run's folder; name the config: {path / 'config.toml'}.")
    if path.suffix != ".toml":
        raise unknown("preset", source, [*PRESETS, "CONFIG.toml"])
    try:
        return read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SalfError(
            f"there is no config file {source!r}; name one, or a preset: {', '.join(PRESETS)}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SalfError(f"cannot read the config {source!r}: {error}.") from None


def read_toml(text: str) -> Config:
    """What `Config.to_toml` wrote, or a person."""
    table = tomllib.loads(text)
    known = {_key(setting.name): setting.name for setting in fields(Config)}
    return make_config({known.get(key, key): value for key, value in table.items()})


def make_config(settings: Mapping[str, Any]) -> Config:
    """A config from settings by name, refusing names there are not."""
    known = {setting.name for setting in fields(Config)}
    for name in settings:
        if name not in known:
            raise unknown("setting", _key(name), map(_key, known))
    return Config(**settings)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _check_type(setting: Field[Any], value: Any) -> None:
    if setting.name == "options":
        allowed: tuple[type, ...] = (Mapping,)
    elif setting.name == "lr":
        allowed = (float, int, str)
    else:
        allowed = (float, int) if isinstance(setting.default, float) else (type(setting.default),)
    if isinstance(value, bool) or not isinstance(value, allowed):
        kinds = " or ".join(kind.__name__ for kind in allowed)
        raise SalfError(f"{_key(setting.name)} must be of type {kinds}, not {value!r}.")


_CIFAR = Config(data="cifar10", model="vgg11", rounds=1500, lr=0.05, validation=0.2, eval_every=50)
# The paper's settings.
PRESETS: Mapping[str, Config] = {
    "mnist-mlp": Config(data="mnist", model="mlp", rounds=250, lr=0.05),
    "mnist-cnn": Config(data="mnist", model="cnn", rounds=150, lr=0.1),
    **{f"cifar-vgg{n}": replace(_CIFAR, model=f"vgg{n}") for n in (11, 13, 16, 19)},
}
