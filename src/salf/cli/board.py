"""The live display of a run: which layer each user reached, and when."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import TaskID
from rich.table import Table
from rich.text import Text

from salf.cli.terminal import console, say
from salf.common.bars import Bar

if TYPE_CHECKING:
    from salf.core.rows import Row

EVERY = 10.0  # seconds between lines where there is no terminal
MOST = 20  # users that are shown one by one


class Board:
    """A bar, a line for each user with the layers it reached, and the accuracy.

    Where there is no terminal it is a line every few seconds.
    """

    def __init__(self, rounds: int, layers: Sequence[str], slow: Mapping[str, float]) -> None:
        self._rounds = rounds
        self._layers = layers
        self._slow = slow
        self._bar = Bar("rounds", rounds, counted=True).progress
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._accuracy: float | None = None
        self._late: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._said = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> "Board":
        return self  # it appears with the first round: until then others may show what they do

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, row: "Row") -> None:
        """A round is closed."""
        if row.accuracy is not None:
            self._accuracy = row.accuracy
        self._late.update(row.silent)
        self._rejected.update(user for user, _ in row.rejected)
        now = time.monotonic()
        if console.is_terminal:
            self._bar.update(TaskID(0), completed=row.round, state=self._line(row))
            if now - self._shown > 0.1:
                self._shown = now
                self._live.start()
                self._live.update(Group(self._users(row), self._bar.get_renderable()), refresh=True)
        elif now - self._said >= EVERY or row.round == self._rounds:
            self._said = now
            say(f"round {row.round} of {self._rounds}: {self._line(row)}")

    def _line(self, row: "Row") -> str:
        heard = sum(depth <= len(self._layers) for depth in row.depths.values())
        accuracy = "" if self._accuracy is None else f", accuracy {self._accuracy:.4f}"
        return (
            f"{heard} of {len(row.depths)} users answered in {1000 * row.seconds:.0f} ms, "
            f"layers reached by {'/'.join(map(str, row.reached))}{accuracy}"
        )

    def _users(self, row: "Row") -> Table:
        table = Table(title=f"round {row.round}", box=None, title_justify="left", padding=(0, 2))
        table.add_column("user")
        table.add_column("layers reached, from the last")
        table.add_column("this round")
        table.add_column("late", justify="right")
        table.add_column("rejected", justify="right")
        for user, depth in sorted(row.depths.items(), key=_by_number)[:MOST]:
            table.add_row(
                Text(_name(user, self._slow.get(user, 1.0))),
                _blocks(depth, len(self._layers)),
                Text(self._how(user, depth, row)),  # as it is: a reason may quote anything
                str(self._late[user] or ""),
                str(self._rejected[user] or ""),
            )
        if len(row.depths) > MOST:
            table.add_row(f"and {len(row.depths) - MOST} more", "", "", "", "")
        return table

    def _how(self, user: str, depth: int, row: "Row") -> str:
        if reasons := [reason for who, reason in row.rejected if who == user]:
            return reasons[-1]
        if row.finished(user):
            return "finished"
        begun, planned = row.steps.get(user, (1, 1))
        step = f" in local step {begun} of {planned}" if planned > 1 else ""
        if depth <= len(self._layers):
            return f"reached layer {depth} ({self._layers[depth - 1]}){step}"
        return "late" if user in row.silent else "completed no layer"


def _blocks(depth: int, layers: int) -> Text:
    reached = layers + 1 - depth
    return Text("■" * reached, style="green") + Text("□" * (layers - reached), style="dim")


def _name(user: str, factor: float) -> str:
    return user if factor == 1 else f"{user} ({factor:g}x slower)"


def _by_number(entry: tuple[str, int]) -> tuple[int, str]:
    number = entry[0].rpartition("-")[2]
    return (int(number) if number.isdigit() else 0), entry[0]
