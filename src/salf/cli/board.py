"""The live display of a run: which layer each user reached, and when."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from salf.cli.terminal import console, say
from salf.runs.live_config import LiveConfig

if TYPE_CHECKING:
    from salf.core.rows import Row

EVERY, SHOWN_EVERY = 10.0, 0.1  # seconds between lines where there is no terminal, and pictures


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
        self._config, self._layers = config, layers

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
            f"round {row.round} of {self._config.rounds}: {heard} of {len(row.depths)} users in "
            f"{1000 * row.seconds:.0f} ms, layers reached by {'/'.join(map(str, row.reached))}"
            f"{self._accuracy}"
        )
        every = SHOWN_EVERY if console.is_terminal else EVERY
        if time.monotonic() - self._last < every and row.round < self._config.rounds:
            return
        self._last = time.monotonic()
        if console.is_terminal:
            from salf.report.live import LiveRun, last_round

            run = LiveRun(self._config, [row], {"layers": self._layers})
            self._live.start()
            self._live.update(Group(Text(line), last_round(run).rich()), refresh=True)
        else:
            say(line)
