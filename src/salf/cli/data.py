"""`salf data`."""

from pathlib import Path
from typing import Annotated

import typer

from salf.cli.options import GivenSettings, settings_of
from salf.cli.terminal import console, say, tell
from salf.runs.config import Config


@settings_of(Config, only=("data_dir",))
def data(
    settings: GivenSettings,
    name: Annotated[
        str, typer.Argument(help="mnist | fashion-mnist | cifar10 | digits | idx:PATH | ...")
    ],
) -> None:
    """Download a data set into the cache, verify it, and print its size and source."""
    from salf.data import load

    folder = settings.get("data_dir")
    with console.status(f"looking for {name}"):
        found = load(name, Path(folder) if folder else None, report=say)
    tell(
        f"{found.name}: {len(found.train):,} training and {len(found.test):,} test samples of "
        f"shape {'x'.join(map(str, found.train.shape))}, {found.classes} classes "
        f"({found.source})"
    )
