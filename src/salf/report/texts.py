"""What pages say, and the names and colours they show things with: texts.toml."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def texts() -> dict[str, Any]:
    """All of them, by section."""
    return tomllib.loads(files("salf.report").joinpath("texts.toml").read_text(encoding="utf-8"))


def text(name: str, **values: object) -> str:
    """The text `section.name`, with values filled in."""
    section, _, key = name.partition(".")
    return str(texts()[section][key]).format(**values)
