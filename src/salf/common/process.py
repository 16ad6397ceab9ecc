"""What a run asks of its process: an orderly end, and freed memory kept from round to round.

Ctrl-C and SIGTERM (from systemd, Kubernetes, `timeout`) end a program in order. Python runs signal
handlers in the main thread only, so in any other the handlers here do nothing.

glibc gives large blocks back to the system when they are freed, and the next round maps them anew,
page by page: thousands of page faults a round, up to a third of its time. Results do not depend
on where memory comes from.
"""

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATED = 128 + signal.SIGTERM  # the exit code

_LARGE = 2**30
# M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h, with the values that glibc's own end up at in a
# process that frees large blocks; they only ever grow.
_USUAL = {-3: 32 * 2**20, -1: 64 * 2**20}


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
def held_signals() -> Iterator[list[int]]:
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


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory in the process for a time, and give it back afterwards.

    Only with glibc's allocator, and not if the environment sets its thresholds.
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    for threshold in _USUAL:
        library.mallopt(threshold, _LARGE)
    try:
        yield
    finally:
        for threshold, usual in _USUAL.items():
            library.mallopt(threshold, usual)
        library.malloc_trim(0)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
