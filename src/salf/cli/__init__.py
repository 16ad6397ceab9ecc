"""The command line."""

from typing import Annotated, Any

import typer

from salf.cli import live, reproduction, simulation, theory
from salf.cli.options import option
from salf.cli.terminal import say, tell
from salf.errors import SalfError

app = typer.Typer(
    name="salf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that never waits for stragglers.\n\n"
    "Every round ends at a deadline; each user sends the gradients of the layers its "
    "backpropagation reached; the server averages every layer over the users that reached it.",
)


@app.callback()
def common(
    version: Annotated[bool, option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Print the version, if that is all."""
    if version:
        from importlib.metadata import version as installed

        tell(f"salf {installed('salf')}")
        raise typer.Exit


for command in (
    simulation.run,
    simulation.compare,
    reproduction.reproduce,
    live.live,
    live.page,
    live.join,
    live.replay,
    simulation.data,
    theory.bound,
):
    app.command()(command)

INTERRUPTED = 130  # the exit code of a program stopped by Ctrl-C
# Typer has its own copy of click, or uses click itself; either way this is the common ancestor.
UsageError: Any = typer.BadParameter.__bases__[0]


def main() -> None:
    """Run the command line. What a person can mend is one sentence and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except SalfError as error:
        _fail(str(error))
    except OSError as error:  # a disk that is full, a folder that may not be written to
        _fail(f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}.")
    except UsageError as error:
        _fail(error.format_message())
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:  # which newer versions of typer return instead of raising
        say("salf: stopped. With --out, repeat the command to go on (run and live: with --resume).")
    raise SystemExit(code)


def _fail(message: str) -> None:
    say(f"salf: {message}")
    raise SystemExit(2)
