"""The live display of a run: which layer each user reached, and when."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from salf.cli.terminal import console, say
from salf.common.errors import in_one_line
from salf.runs.live_config import LiveConfig, slowness

if TYPE_CHECKING:
    from salf.core.rows import Row

EVERY, SHOWN_EVERY = 10.0, 0.1  # seconds between lines where there is no terminal, and pictures
MOST = 20  # users that are shown one by one


class Board:
    """A live run on the screen: what is being prepared, then users and the layers they reached.

    Where there is no terminal it is a line every few seconds.
    """

    def __init__(self) -> None:
        self._status = console.status("")
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._accuracy = ""
        self._last = time.monotonic()

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

    def status(self, text: str) -> None:
        """What is being prepared; empty when that is over."""
        self._status.update(text)
        (self._status.start if text else self._status.stop)()

    def say(self, text: str) -> None:
        """Something to know."""
        say(text)

    def round(self, row: "Row") -> None:
        """A round is closed."""
        if row.accuracy is not None:
            self._accuracy = f", accuracy {row.accuracy:.4f}"
        heard = sum(depth <= len(self._layers) for depth in row.depths.values())
        line = (
            f"round {row.round} of {self._rounds}: {heard} of {len(row.depths)} users answered in "
            f"{1000 * row.seconds:.0f} ms, layers reached by {'/'.join(map(str, row.reached))}"
            f"{self._accuracy}"
        )
        every = SHOWN_EVERY if console.is_terminal else EVERY
        if time.monotonic() - self._last < every and row.round < self._rounds:
            return
        self._last = time.monotonic()
        if console.is_terminal:
            self._live.start()
            self._live.update(Group(Text(line), self._users(row)), refresh=True)
        else:
            say(line)

    def _users(self, row: "Row") -> Table:
        table = Table("user", "layers reached, from the last", "this round", box=None)
        in_order = sorted(row.depths, key=lambda user: (len(user), user))  # user-10 after user-2
        for user in in_order[:MOST]:
            depth, factor = row.depths[user], self._slow.get(user, 1.0)
            table.add_row(
                Text(in_one_line(user) + f" ({factor:g}x slower)" * (factor != 1)),
                Text("■" * (len(self._layers) + 1 - depth) + "□" * (depth - 1)),
                Text(in_one_line(self._how(user, depth, row))),  # a reason may quote anything
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
