"""Progress bars on standard error, for work of more than two seconds that somebody looks at."""

from time import monotonic
from typing import Any

from rich import progress as of
from rich.console import Console

PATIENCE = 2.0

console = Console(stderr=True)


class Bar:
    """What is being done, how much of it is done, time gone and time left.

    It appears after two seconds, in a terminal or a notebook. What is `counted` is shown as a
    number of so many, all else in percent. The time left is judged by the last `memory` seconds.
    """

    def __init__(
        self, what: str, total: float | None = None, counted: bool = False, memory: float = 30.0
    ) -> None:
        self.progress = of.Progress(
            of.TextColumn("{task.description}"),
            of.BarColumn(),
            of.MofNCompleteColumn() if counted else of.TaskProgressColumn(),
            of.TextColumn("{task.fields[state]}"),
            of.TimeElapsedColumn(),
            of.TimeRemainingColumn(),
            of.TextColumn("left"),
            console=console,
            speed_estimate_period=memory,
            transient=True,
        )
        self.visible = console.is_terminal or console.is_jupyter
        self.task = self.progress.add_task(what, total=total, state="")
        self._from = monotonic() + PATIENCE

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self.progress.live.is_started:
            self.progress.stop()

    def update(self, done: float, total: float | None = None, **more: Any) -> None:
        """So much is done; `more` may be `state`, a text beside the bar, or `description`."""
        if self.visible:
            self.progress.update(self.task, completed=done, total=total, **more)
            if monotonic() >= self._from:
                self.progress.start()
