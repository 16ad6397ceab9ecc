"""`salf fleet`: devices with a simulated clock."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from salf.cli.options import ConfigSource, GivenSettings, option, settings_of
from salf.cli.terminal import Downloads, console, tell
from salf.runs.config import Config
from salf.runs.presets import simulated

app = typer.Typer(
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

        salf fleet preview mnist-mlp --fleet phones --deadline 60ms --out preview

        salf fleet preview mnist-cnn --fleet pis --batches equal-time
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
