"""What is printed where: results to standard output, progress and messages to standard error."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True)
results = Console()


def say(message: str) -> None:
    """A line for the person, as it is: brackets are no markup, and it is not broken up."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


def tell(result: str) -> None:
    """A line of the result, as it is."""
    results.print(result, markup=False, highlight=False, soft_wrap=True)


def progress_bar(*more: str, counted: bool = True, memory: float = 30.0) -> Progress:
    """A bar with rounds, time gone and time left; nothing where there is no terminal.

    What cannot be counted is in percent. The time left is judged by the last `memory` seconds.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        *(TextColumn(text) for text in more),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        speed_estimate_period=memory,
        disable=not console.is_terminal,
        transient=True,
    )
