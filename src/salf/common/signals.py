"""Ctrl-C and SIGTERM (from systemd, Kubernetes, `timeout`) end a program in order.

Python runs signal handlers in the main thread only, so in any other all of this does nothing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATED = 128 + signal.SIGTERM  # the exit code


def leave(number: int, frame: object) -> None:
    """Handle SIGTERM as an exception, once: `timeout` sends it twice."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(TERMINATED)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit`, unless the program handles it already."""
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except SystemExit:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # `leave` was called
            # Ray makes an exit inside one of its calls an exit with code 1.
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def held() -> Iterator[list[int]]:
    """Hold back Ctrl-C and SIGTERM; the list gets their numbers. The second Ctrl-C gets through.

    Handlers other than Python's own and `leave` stay: that program handles signals itself.
    """
    numbers: list[int] = []

    def hold(number: int, frame: object) -> None:
        numbers.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: leave}
    ours = {n: usual[n] for n in usual if _in_main_thread() and signal.getsignal(n) is usual[n]}
    for number in ours:
        signal.signal(number, hold)
    try:
        yield numbers
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while processes are being ended: people press it again."""
    numbers = (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
