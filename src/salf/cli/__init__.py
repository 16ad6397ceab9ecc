"""The command line."""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from salf.cli import bench, demo, doctor, fleet, live, runs, show, watch
from salf.cli.options import Answering, option, show_all
from salf.cli.terminal import INTERRUPTED, as_options, results, say, tell
from salf.common import version as installed
from salf.common.errors import SalfError
from salf.common.process import TERMINATED, sigterm_as_exit

app = typer.Typer(
    name="salf",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that never waits for stragglers.\n\n"
    "Every round ends at a deadline. Each user sends the gradients of the layers that its "
    "backpropagation reached, and the server averages each layer over the users that reached it.",
)


def _version(asked: bool) -> None:
    if asked:
        tell(f"salf {installed()}")
        raise typer.Exit


_eager = partial(option, is_eager=True)


@app.callback()
def common(
    version: Annotated[bool, _eager("--version", help="Show it.", callback=_version)] = False,
    help_all: Annotated[bool, _eager("--help-all", help="Show more.", callback=show_all)] = False,
) -> None:
    """Options of the program itself."""


COMMANDS: tuple[Callable[..., None], ...] = (
    demo.demo,
    runs.run,
    runs.compare,
    runs.plan,
    bench.bench,
    live.live,
    watch.watch,
    show.methods,
    show.layers,
    show.data,
    doctor.doctor,
    live.join,
    live.page,
    live.replay,
    show.bound,
)
RARE = ("join", "page", "replay", "bound")  # which --help-all shows
for each in COMMANDS:
    app.command(hidden=each.__name__ in RARE, cls=Answering)(each)
app.add_typer(fleet.app, name="fleet")

# Typer has its own copy of click, or uses click itself; either way these are the common ancestors.
UsageError: Any = typer.BadParameter.__bases__[0]
ClickException: Any = UsageError.__bases__[0]


def main(command: typer.Typer = app, *, continues: bool = False) -> None:
    """Run the command line. What a person can mend is one sentence and exit code 2.

    With `continues`, the command goes on where it was stopped when it is repeated.
    """
    results.quiet = False
    try:
        with sigterm_as_exit():
            code = command(standalone_mode=False)
    except SalfError as error:
        _fail(as_options(str(error)))
    except OSError as error:  # a disk that is full, a folder that may not be written to
        _fail(f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}.")
    except ClickException as error:
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
    """An error and the way out. Of `salf` alone it is empty: that has printed the help."""
    # Typer and newer versions of click each ask whether another command was meant.
    message = re.sub(r"( Did you mean .+?\?)\1", r"\1", error.format_message())
    if message.startswith("Missing") and (
        wanted := getattr(getattr(error, "param", None), "help", None)
    ):
        return f"{message.rstrip('.')}: {wanted}"
    if message and (context := getattr(error, "ctx", None)) is not None:
        end = "" if message.endswith("?") else "."
        return f"{message.rstrip('.')}{end} See {context.command_path} --help."
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
