"""`salf fleet`: devices with a simulated clock."""

import typer

from salf.cli.fleet_measure import measure

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Fleets: users' devices, which give a simulated run its clock.",
)


@app.callback()
def _group() -> None:
    """Keep `measure` a command of its own: Typer makes a single command the whole app."""


app.command()(measure)
