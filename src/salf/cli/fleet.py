"""`salf fleet`: devices with a simulated clock."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from salf.cli.commands import Commands
from salf.cli.options import ConfigSource, GivenSettings, option, settings_of
from salf.cli.terminal import Downloads, console, say, tell
from salf.common.errors import SalfError
from salf.runs.config import Config
from salf.runs.presets import simulated

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Fleets: the users' devices, for a simulated clock.",
)


@app.command("list")
def list_() -> None:
    """List the fleets that come with salf; docs/fleets.md describes them."""
    from salf.worlds.fleet.named import NAMED

    width = max(map(len, NAMED))
    for name, make in NAMED.items():
        tell(f"{name:{width}}  {(make.__doc__ or '').splitlines()[0]}")
    tell(
        "Or a file with a line per device (FILE.csv), or a fleet of your own (package.module:Name)."
    )


_PREVIEWED = (
    "data", "data_dir", "split", "model", "layers", "users", "cohort", "cohort_by", "fleet",
    "availability", "pair", "deadline", "batches", "batch_size", "local_steps", "local_epochs",
    "seed",
)  # fmt: skip


@app.command()
@settings_of(Config, only=_PREVIEWED)
def preview(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    out: Annotated[
        Path | None, option("--out", help="Folder for a figure (PNG, SVG) and a page.")
    ] = None,
) -> None:
    """Show which layers users reach by which deadline, and how long FedAvg would wait.

    Nothing is trained. The default deadline is the one by which users reach 70 % of their layers.

    Examples:

        salf fleet preview mnist-mlp --fleet phones --deadline 800ms --out preview

        salf fleet preview mnist-cnn --fleet edge --batches equal-time
    """
    from salf.report.extra import check_extra
    from salf.report.fleet import write_preview
    from salf.runs.previews import preview_of

    if out is not None:
        check_extra()
    config = simulated(source).changed(**settings)
    with console.status("drawing rounds"):
        found = preview_of(config, Downloads())
    tell(str(found))
    if out is not None:
        for path in write_preview(found, config, out, sys.argv[1:]):
            tell(f"wrote {path}")


@app.command()
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
