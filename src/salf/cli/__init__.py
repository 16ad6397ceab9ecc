"""The command line."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from salf.cli import bench, demo, fleet, live, runs, show
from salf.cli.options import option
from salf.cli.terminal import INTERRUPTED, as_options, say, tell
from salf.common.errors import SalfError
from salf.common.process import TERMINATED, sigterm_as_exit

app = typer.Typer(
    name="salf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that never waits for stragglers.\n\n"
    "Every round ends at a deadline. Each user sends the gradients of the layers that its "
    "backpropagation reached, and the server averages each layer over the users that reached it.",
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
    runs.run,
    runs.compare,
    runs.plan,
    bench.bench,
    live.live,
    live.page,
    live.join,
    live.replay,
    show.layers,
    show.data,
    show.bound,
    demo.demo,
):
    app.command()(command)
app.add_typer(fleet.app, name="fleet")

# Typer has its own copy of click, or uses click itself; either way this is the common ancestor.
UsageError: Any = typer.BadParameter.__bases__[0]


def main(command: typer.Typer = app, *, continues: bool = False) -> None:
    """Run the command line. What a person can mend is one sentence and exit code 2.

    With `continues`, the command goes on where it was stopped when it is repeated.
    """
    try:
        with sigterm_as_exit():
            code = command(standalone_mode=False)
    except SalfError as error:
        _fail(as_options(str(error)))
    except OSError as error:  # a disk that is full, a folder that may not be written to
        _fail(f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}.")
    except UsageError as error:
        _fail(_what_to_give(error))
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except SystemExit as ended:
        code = ended.code
    if code in (INTERRUPTED, TERMINATED):  # typer may return the former instead of raising
        how = " Repeat the command to continue." if continues else _how_to_continue(sys.argv[1:])
        say(f"salf: stopped.{how}")
    raise SystemExit(code)


def _what_to_give(error: Any) -> str:
    """A usage error and the way out. Of `salf` alone it is empty: that has printed the help."""
    # Typer and newer versions of click each ask whether another command was meant.
    message = re.sub(r"( Did you mean .+?\?)\1", r"\1", error.format_message())
    if message.startswith("Missing") and (wanted := getattr(error.param, "help", None)):
        return f"{message.rstrip('.')}: {wanted}"
    if message and error.ctx is not None:
        end = "" if message.endswith("?") else "."
        return f"{message.rstrip('.')}{end} See {error.ctx.command_path} --help."
    return message


def _how_to_continue(arguments: Sequence[str]) -> str:
    command = next((word for word in arguments if not word.startswith("-")), "")
    kept = any(word.partition("=")[0] == "--out" for word in arguments)
    if command in ("demo", "bench", "plan") or (kept and command == "compare"):
        return " Repeat the command to continue."
    if command not in ("run", "live", "compare"):
        return ""
    return f" {'Repeat the command with --resume to continue' if kept else 'Nothing was saved'}."


def _fail(message: str) -> None:
    if message:
        say(f"salf: {message}")
    raise SystemExit(2)
