"""`salf fleet measure`: a fleet from the record of a live run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from salf.cli.options import option
from salf.cli.terminal import say, tell
from salf.common.errors import SalfError


def measure(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run.")],
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="The file to write; by default FOLDER/fleet.csv. A figure (PNG, SVG) and a page "
            "are written next to it.",
        ),
    ] = None,
) -> None:
    """Create a fleet from a live run: layer times, jitter and message overhead of every user.

    The command also shows how well the fleet simulates the run: a fleet measured from every second
    round is compared with the other rounds, in the terminal, as a figure and on a page.

    Examples:

        salf live mnist-cnn --users 8 --deadline 50ms --slow 0.5x8 --out runs/live

        salf fleet measure runs/live

        salf run mnist-cnn --fleet runs/live/fleet.csv --users 8 --deadline 50ms
    """
    from salf.live.agreement import measure as measured_of
    from salf.report.agreement import write_agreement

    path = out or folder / "fleet.csv"
    if path.suffix != ".csv":  # which --fleet knows files by
        raise SalfError(f"--out must be a file that ends in .csv, not {path.name!r}.")
    measured, agreement = measured_of(folder)
    measured.write(path)
    tell(str(agreement))
    tell(f"wrote {path}, a fleet of {len(measured.devices)} devices: use it as --fleet {path}")
    try:
        for file in write_agreement(agreement, folder, path, sys.argv[1:]):
            tell(f"wrote {file}")
    except SalfError as error:
        say(f"No page was written: {error}")
