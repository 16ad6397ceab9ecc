"""`salf page` and `salf replay`: what can be done with the folder of a live run."""

from pathlib import Path
from typing import Annotated

import typer

from salf.cli.terminal import progress_bar, say, tell


def page(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run (its --out).")],
) -> None:
    """Make the page of a live run: accuracy over time, how far each user got, rejected updates.

    `salf live --out` leaves it at the end, as FOLDER/live.html: one file that
    needs no network. Of a run that goes on or was stopped it has the rounds so
    far; the run is not disturbed.

    Example:

        salf page runs/live
    """
    from salf.report import write_live_page

    tell(f"wrote {write_live_page(folder)}")


def replay(
    folder: Annotated[Path, typer.Argument(help="The folder of a live run (its --out).")],
) -> None:
    """Run a live run's recorded depths again in the simulator, and compare the two.

    Example:

        salf replay runs/live
    """
    from salf.experiments.folder import RunFolder
    from salf.experiments.replay import recorded, replay

    with progress_bar() as progress:
        task = progress.add_task("replaying", total=len(recorded(folder)))
        replayed = replay(folder, lambda row, _: progress.update(task, completed=row.round))
    accuracy, rounds = replayed.history.test_accuracy, len(replayed.history.rows)
    tell(f"replayed: test accuracy {accuracy_text(accuracy)} after {rounds} rounds")
    summary = RunFolder(folder).summary()
    if summary is None:
        say("The live run is not finished, so there is nothing to compare with yet.")
    else:
        tell(
            f"live:     test accuracy {accuracy_text(summary['test_accuracy'])}; its model is "
            f"{replayed.distance:.1e} of its norm away from the replayed one"
        )


def accuracy_text(accuracy: float | None) -> str:
    """Of a run that may have no test data."""
    return "not measured" if accuracy is None else f"{accuracy:.4f}"
