"""Memory that a round freed is kept for the next round, where the C library lets us say so.

glibc gives large blocks back to the system when they are freed, and the next round maps them anew,
page by page: thousands of page faults a round, up to a third of its time. Results do not depend
on where memory comes from.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from salf.common.errors import SalfError

VARIABLE = (
    "SALF_MALLOC"  # in the environment: "keep", which is meant if it is not set, or "default"
)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them, from malloc.h
_LARGE = 2**30
# Where glibc's own thresholds end up in a process that frees large blocks; they only ever grow.
_USUAL = {_MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}
# What glibc itself reads. Whoever set one of these has chosen already.
_GLIBCS_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@contextmanager
def kept() -> Iterator[None]:
    """Keep freed memory in the process for a time, and give it back afterwards.

    Only with glibc's allocator, and not if the environment says otherwise.
    """
    if not _is_wanted() or not _is_glibc():
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


def _is_wanted() -> bool:
    choice = os.environ.get(VARIABLE, "").strip() or "keep"
    if choice not in ("keep", "default"):
        raise SalfError(f"{VARIABLE} must be 'keep' or 'default', not {choice!r}.")
    tuned = any(name in os.environ for name in _GLIBCS_OWN)
    tuned = tuned or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    return choice == "keep" and not tuned


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # Windows, macOS, musl
        return False
