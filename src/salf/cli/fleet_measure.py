"""`salf fleet measure`: a fleet from the record of a live run."""

from pathlib import Path
from typing import Annotated

import typer

from salf.cli.options import option
from salf.cli.terminal import tell


def measure(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run.")],
    out: Annotated[
        Path | None, option("--out", help="The file to write; by default FOLDER/fleet.csv.")
    ] = None,
) -> None:
    """Make a fleet from a live run: layer times, jitter and message overhead of every user.

    It also says how well the fleet simulates the run: a fleet from every second round is compared
    with the other rounds.

    Examples:

        salf live mnist-cnn --users 8 --deadline 50ms --slow 0.5x8 --out runs/live

        salf fleet measure runs/live

        salf run mnist-cnn --fleet runs/live/fleet.csv --users 8 --deadline 50ms
    """
    from salf.experiments.measure import measure as measured_of

    measured, agreement = measured_of(folder)
    path = out or folder / "fleet.csv"
    measured.write(path)
    tell(str(agreement))
    tell(f"wrote {path}, a fleet of {len(measured.devices)} devices: use it as --fleet {path}")
