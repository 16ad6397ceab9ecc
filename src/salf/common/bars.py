"""Progress bars on standard error, for work of more than two seconds that somebody looks at."""

from io import StringIO
from time import monotonic
from typing import Any

from rich import progress as of
from rich.console import Console

PATIENCE, BETWEEN = 2.0, 0.5  # seconds before the bar appears, and between two views in a notebook

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
        self._from = monotonic() + PATIENCE  # when it is shown next
        self._cell: Any = None  # of a notebook

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._cell is not None:
            self._cell.update({"text/plain": ""}, raw=True)
        elif self.progress.live.is_started:
            self.progress.stop()

    def update(self, done: float, total: float | None = None, **more: Any) -> None:
        """So much is done; `more` may be `state`, a text beside the bar, or `description`."""
        if self.visible:
            self.progress.update(self.task, completed=done, total=total, **more)
            if monotonic() >= self._from and console.is_jupyter:
                self._show_in_cell()
            elif monotonic() >= self._from:
                self.progress.start()

    def _show_in_cell(self) -> None:
        """Show the bar as text below a notebook's cell: rich would need ipywidgets."""
        from IPython.display import display

        plain = Console(file=StringIO(), force_jupyter=False, width=100)
        with plain.capture() as line:
            plain.print(self.progress.get_renderable())
        shown = {"text/plain": line.get().rstrip()}
        if self._cell is None:
            show: Any = display  # whose types depend on the version
            self._cell = show(shown, raw=True, display_id=True)
        else:
            self._cell.update(shown, raw=True)
        self._from = monotonic() + BETWEEN
