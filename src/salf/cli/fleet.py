"""`salf fleet`: devices with a simulated clock."""

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from salf.cli.options import Answering, ConfigSource, GivenSettings, option, settings_of
from salf.cli.show import ModelName, named_model
from salf.cli.terminal import answer, console, say, wrote
from salf.common.errors import SalfError
from salf.runs.config import Config
from salf.runs.presets import simulated

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Fleets: the users' devices, for a simulated clock.",
)


def list_() -> None:
    """List the fleets that come with salf; docs/fleets.md describes them."""
    from salf.worlds.fleet.named import NAMED

    found = {name: (make.__doc__ or "").splitlines()[0] for name, make in NAMED.items()}
    width = max(map(len, NAMED))
    answer(
        [{"name": name, "about": about} for name, about in found.items()],
        *(f"{name:{width}}  {about}" for name, about in found.items()),
        "Or a file with a line per device (FILE.csv), FedScale's files (fedscale:FOLDER), or your "
        "own (package.module:Name).",
    )


_PREVIEWED = (
    "data", "data_dir", "split", "model", "layers", "users", "cohort", "cohort_by", "fleet",
    "availability", "pair", "deadline", "batches", "batch_size", "local_steps", "local_epochs",
    "seed",
)  # fmt: skip


@settings_of(Config, only=_PREVIEWED)
def preview(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    out: Annotated[Path | None, option("--out", help="Folder for a picture.")] = None,
) -> None:
    """Show which layers users reach by which deadline, and how long FedAvg would wait.

    Nothing is trained. The default deadline is the one by which users reach 70 % of their layers.

    Examples:

        salf fleet preview mnist-mlp --fleet phones --deadline 60ms --out preview
    """
    from salf.report.fleet import write_preview
    from salf.runs.federation import preview_of

    config = simulated(source).changed(**settings)
    with console.status("drawing rounds"):
        found = preview_of(config, say)
    answer({**vars(found), "reach": found.reach.mean(axis=1)}, str(found))
    wrote(*write_preview(found, out) if out else ())


@settings_of(Config, only=("data", "layers"))
def calibrate(
    settings: dict[str, Any],
    model: ModelName,
    out: Annotated[
        Path, option("--out", help="A fleet file; a line is added to one that exists.")
    ] = Path("fleet.csv"),
) -> None:
    """Measure how long this machine takes for the parts of a training step of a model.

    Steps of several batch sizes are timed for some seconds, in one thread, and written as a line of
    a fleet: seconds per launch, parameter and multiply-add, of the forward pass and of the backward
    pass of every layer. Run it on one device of each kind, join the lines in one file, and write
    how many users have such a device into the column users.

    Examples:

        salf fleet calibrate cnn --out pi.csv

        salf run mnist-cnn --fleet pi.csv --users 8 --deadline 50ms
    """
    from salf.live.calibrate import ROWS, calibrate
    from salf.worlds.fleet.cost import Cost
    from salf.worlds.fleet.files import write

    if out.suffix != ".csv":  # which --fleet knows files by
        raise SalfError(f"--out must be a file that ends in .csv, not {out.name!r}.")
    _, network, layers, inputs, classes = named_model(model, settings, rows=ROWS)
    with console.status("timing steps"):
        cost = Cost.of(network, layers, inputs)
        found = calibrate(network, layers, cost, inputs, classes)
    launch, parameter, multiply_add = found.common
    about = {"launch": launch, "parameter": parameter, "multiply_add": multiply_add}
    answer(
        {**about, "jitter": found.jitter, "measured": found.measured, "fitted": found.fitted},
        f"If all layers were alike: {launch:.2g} s per launch, {parameter:.2g} s per parameter, "
        f"{multiply_add:.2g} s per multiply-add. Times vary by {found.jitter:.0%} (sigma).",
    )
    write(out, platform.node() or "device", found.kind, found.jitter)
    wrote(f"{out}: use it as --fleet {out}")


for each in (list_, preview, calibrate):
    app.command(each.__name__.rstrip("_"), cls=Answering)(each)
