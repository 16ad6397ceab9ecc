"""Configs that have a name or are in a file."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path

from salf.common.errors import SalfError, unknown
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.settings import check_names, key, names_of, read_fields

_TABLES = tomllib.loads(resources.files("salf.runs").joinpath("presets.toml").read_text("utf-8"))
PRESETS: Mapping[str, Config] = {name: Config(**table) for name, table in _TABLES.items()}


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
