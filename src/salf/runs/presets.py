"""Configs that have a name or are in a file."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path

from salf.common.errors import SalfError, unknown
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.settings import check_names, key, names_of, read_fields

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


def load_config(source: str, *, look: bool = False) -> Config | LiveConfig:
    """A preset by name, or a TOML file by path; with `look`, see `read_toml`."""
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if (path / "config.toml").is_file():
        raise SalfError(f"{source} is a run's folder; pass its config: {path / 'config.toml'}.")
    if path.suffix != ".toml":
        raise unknown("preset", source, [*PRESETS, "CONFIG.toml"])
    try:
        return read_toml(path.read_text(encoding="utf-8"), look=look)
    except FileNotFoundError:
        raise SalfError(
            f"there is no config file {source!r}; pass one, or a preset: {', '.join(PRESETS)}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SalfError(f"cannot read the config {source!r}: {error}.") from None


def read_toml(text: str, *, look: bool = False) -> Config | LiveConfig:
    """What `to_toml` wrote, or a person: a `LiveConfig` if a setting is of live runs only.

    So is a deadline without a fleet, if all settings are those of live runs. With `look`, settings
    are read and not tried: what they name is not looked up, so no code of anybody's is run.
    """
    table = {name.replace("-", "_"): value for name, value in tomllib.loads(text).items()}
    simulated, live = names_of(Config), names_of(LiveConfig)
    is_live = not table.keys().isdisjoint({*live} - {*simulated})
    is_live |= "deadline" in table and table.keys() <= {*live}
    kind: type[Config | LiveConfig] = LiveConfig if is_live else Config
    check_names(table, kind, key)
    if not look:
        return kind(**table)
    found = object.__new__(kind)
    for each in fields(kind):
        default = each.default if each.default is not MISSING else {}
        object.__setattr__(found, each.name, table.get(each.name, default))
    read_fields(found)
    return found


def simulated(source: str) -> Config:
    """A preset or a file, unless it is the config of a live run."""
    config = load_config(source)
    if isinstance(config, LiveConfig):
        raise SalfError("this is the config of a live run: use `salf live` or `salf replay`.")
    return config
