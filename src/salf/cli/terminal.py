"""What is printed where: results to standard output, progress and messages to standard error.

With --json, standard output is one JSON document and nothing else.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console

from salf.common.bars import console as console
from salf.report.tables import Table
from salf.report.tables import tell as print_on
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.settings import key, names_of

results = Console()  # quiet with --json, which prints the answer alone
INTERRUPTED = 130  # the exit code of a program stopped by Ctrl-C


def say(message: str) -> None:
    """A line for the person, as it is."""
    print_on(console, message)


def tell(*shown: str | Table) -> None:
    """Sentences and tables of the result, as they are."""
    print_on(results, *shown)


def answer(found: Any, *shown: str | Table) -> None:
    """The result of a command: sentences and tables, or JSON."""
    tell(*shown)
    if results.quiet:
        print(json.dumps(_plain(found), indent=1, ensure_ascii=False, default=str))


def wrote(*paths: Path | str) -> None:
    """Files that a command wrote."""
    for path in paths:
        (say if results.quiet else tell)(f"wrote {path}")


def _plain(found: Any) -> Any:
    """As JSON has it: arrays are lists, and numbers that it cannot write are null."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, Mapping):
        return {str(name): _plain(each) for name, each in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(each) for each in found]
    return None if isinstance(found, float) and not isfinite(found) else found


# deadline='2s', seconds=600, out=
_GIVEN = re.compile(r"(?<![\w.({`-])([a-z][a-z0-9_]*)=('[^']*'|[\w.:%/]*[\w%]|(?=[\s.,;:)]|$))")
_WORD = re.compile(r"(?<![\w./-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w./(])")


def as_options(message: str) -> str:
    """A message as the command line's: `deadline='2s'` in Python is `--deadline 2s` here."""

    def option(found: re.Match[str]) -> str:
        name, value = key(found[1]), found[2].strip("'")
        if value == "True":
            value = ""
        return f"--{name} {value}".rstrip()

    known = {*names_of(Config), *names_of(LiveConfig)}
    message = _GIVEN.sub(option, message)
    message = re.sub(r"options=\{'(\w+)': (\w+)\}", r"--option \1=\2", message)
    return _WORD.sub(lambda word: key(word[0]) if word[0] in known else word[0], message)
