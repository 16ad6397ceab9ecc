"""`salf page` and `salf replay`: what can be done with the folder of a live run."""

from pathlib import Path
from typing import Annotated

import typer

from salf.cli.terminal import say, tell
from salf.common.bars import Bar


def page(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run (its --out).")],
) -> None:
    """Create the page of a live run: accuracy over time, how far each user got, rejected updates.

    The page is FOLDER/live.html, one file that needs no network. `salf live --out`
    writes it at the end of a run. This command also works during a run, or after
    one that was interrupted: the page then shows the rounds so far.

    Example:

        salf page runs/live
    """
    from salf.report.live.page import write_live_page

    tell(f"wrote {write_live_page(folder)}")


def replay(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run (its --out).")],
) -> None:
    """Replay the recorded depths of a live run in the simulator, and compare the two models.

    Example:

        salf replay runs/live
    """
    from salf.live.replays import recorded, replay
    from salf.runs.folder import RunFolder

    with Bar("replaying", len(recorded(folder)), counted=True) as bar:
        replayed = replay(folder, lambda row, _: bar.update(row.round))
    accuracy, rounds = replayed.history.test_accuracy, len(replayed.history.rows)
    tell(f"replayed: test accuracy {accuracy_text(accuracy)} after {rounds} rounds")
    summary = RunFolder(folder).summary()
    if summary is None:
        say("The live run is not finished, so there is nothing to compare with yet.")
    else:
        tell(
            f"live:     test accuracy {accuracy_text(summary['test_accuracy'])}; relative "
            f"distance between the two models: {replayed.distance:.1e}"
        )


def accuracy_text(accuracy: float | None) -> str:
    """Of a run that may have no test data."""
    return "not measured" if accuracy is None else f"{accuracy:.4f}"
