"""The live display of a run: which layer each user reached, and when."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from salf.cli.terminal import console, say
from salf.common.bars import Bar
from salf.runs.live_config import LiveConfig, slowness

if TYPE_CHECKING:
    from salf.core.rows import Row

EVERY = 10.0  # seconds between lines where there is no terminal
MOST = 20  # users that are shown one by one


class Board:
    """A live run on the screen: what is being prepared, then users and the layers they reached.

    Where there is no terminal it is a line every few seconds.
    """

    def __init__(self) -> None:
        self._status = console.status("")
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._accuracy: float | None = None
        self._said = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> "Board":
        return self  # users appear with the first round: until then others may show what they do

    def __exit__(self, *error: object) -> None:
        self._status.stop()
        self._live.stop()

    def begin(self, config: LiveConfig, layers: Sequence[str]) -> None:
        """The federation is put together."""
        from salf.live.users import user_name

        slow = enumerate(slowness(config.slow, config.users), 1)
        self._slow = {user_name(number): factor for number, factor in slow}
        self._rounds, self._layers = config.rounds, layers
        self._bar = Bar("rounds", config.rounds, counted=True)

    def status(self, text: str) -> None:
        """What is being prepared; empty when that is over."""
        if text:
            self._status.update(text)
            self._status.start()
        else:
            self._status.stop()

    def say(self, text: str) -> None:
        """Something to know."""
        say(text)

    def round(self, row: "Row") -> None:
        """A round is closed."""
        if row.accuracy is not None:
            self._accuracy = row.accuracy
        now = time.monotonic()
        if console.is_terminal:
            self._bar.progress.update(self._bar.task, completed=row.round, state=self._line(row))
            if now - self._shown > 0.1:
                self._shown = now
                self._live.start()
                self._live.update(
                    Group(self._users(row), self._bar.progress.get_renderable()), refresh=True
                )
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
        in_order = sorted(row.depths, key=lambda user: (len(user), user))  # user-10 after user-2
        for user, depth in ((user, row.depths[user]) for user in in_order[:MOST]):
            factor, reached = self._slow.get(user, 1.0), len(self._layers) + 1 - depth
            table.add_row(
                Text(user if factor == 1 else f"{user} ({factor:g}x slower)"),
                Text("■" * reached, style="green") + Text("□" * (depth - 1), style="dim"),
                Text(self._how(user, depth, row)),  # as it is: a reason may quote anything
            )
        if len(row.depths) > MOST:
            table.add_row(f"and {len(row.depths) - MOST} more")
        return table

    def _how(self, user: str, depth: int, row: "Row") -> str:
        if reason := dict(row.rejected).get(user):
            return reason
        if row.finished(user):
            return "finished"
        if depth <= len(self._layers):
            return f"reached layer {depth} ({self._layers[depth - 1]})"
        return "late" if user in row.silent else "completed no layer"
