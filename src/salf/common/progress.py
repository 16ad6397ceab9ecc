"""What people hear while a data set is fetched: each step, and bytes where it takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

Report = Callable[[str], None]  # gets a line
OnBytes = Callable[[int], None]  # gets the bytes downloaded so far

PATIENCE = 2.0  # seconds after which a download shows how far it is
LEAST = 100_000  # bytes
EVERY = 10.0  # seconds between two lines of a download


class Reporter:
    """Passes lines on to `say`, and adds some about a download that takes more than two seconds.

    A subclass may show a download otherwise: `show` is told how far it is, `hide` that it is over.
    """

    def __init__(self, say: Report) -> None:
        self._say = say
        self._next_line = 0.0

    def __call__(self, line: str) -> None:
        """Say a line."""
        self._say(line)

    @contextmanager
    def download(self, title: str, total: int | None) -> Iterator[OnBytes]:
        """What a source calls while it downloads; `total` is the number of bytes, if known."""
        visible_from = monotonic() + PATIENCE

        def on_bytes(done: int) -> None:
            # Few bytes are no download yet: a client that waits for an answer has logged something.
            if done >= LEAST and monotonic() >= visible_from:
                self.show(title, done, total)

        try:
            yield on_bytes
        finally:
            self.hide()

    def show(self, title: str, done: int, total: int | None) -> None:
        """Say how far a download is, unless that was said a moment ago."""
        if monotonic() >= self._next_line:
            self._next_line = monotonic() + EVERY
            of = "" if total is None else f" of {megabytes(total)}"
            self._say(f"{title}: downloaded {megabytes(done)}{of}")

    def hide(self) -> None:
        """The download is over, one way or the other."""
        self._next_line = 0.0


def megabytes(count: int) -> str:
    """A number of bytes as people read it."""
    return f"{count / 1e6:.1f} MB"
