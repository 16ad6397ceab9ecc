"""Processes of a local federation end with the one that began it, also when that is killed.

The kernel ends its children. Theirs, which Flower starts for each run and each message, would go on
for half a minute, and the ServerApp's has the files of the run: so they look for themselves.
"""

import os
import threading
import time
from functools import cache
from pathlib import Path

VARIABLE = "SALF_PARENT"  # in the environment of all processes of the federation
EVERY = 0.5  # seconds


def this_process() -> str:
    """What `VARIABLE` is set to by the process that begins a federation."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def end_with_parent() -> None:
    """End this process at once if the one that began the federation is gone; else see to it.

    Call it also before anything is written that another federation could be writing by now.
    Without a local federation it does nothing.
    """
    if VARIABLE in os.environ:
        _end_if_gone()
        _watch()


@cache
def _watch() -> None:
    threading.Thread(target=_keep_looking, daemon=True).start()


def _keep_looking() -> None:
    while True:
        time.sleep(EVERY)
        _end_if_gone()


def _end_if_gone() -> None:
    pid, _, started = os.environ[VARIABLE].partition(":")
    if _started(int(pid)) != started:  # which tells it from another that has its number by now
        os._exit(1)  # nobody is left to be told


def _started(pid: int) -> str:
    """When a process was started, as Linux puts it; "gone" if it is not there."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "gone" if state in "ZX" else rest[18]
    except OSError:
        return "unknown" if not Path("/proc/self").exists() and _is_there(pid) else "gone"


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True
