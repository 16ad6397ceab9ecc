"""Processes of a local federation end with the one that began it, also when that is killed.

The kernel ends its children. Theirs, which Flower starts for each run and each message, would go on
for half a minute, and the ServerApp's has the files of the run: so they look for themselves. The
federation's folder is locked for as long as the process that began it lives.
"""

import os
import threading
import time
from functools import cache
from pathlib import Path

from salf.common.files import locked

VARIABLE = "SALF_PARENT"  # in the environment of all processes of the federation: its folder
EVERY = 0.5  # seconds


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
    try:
        with locked(Path(os.environ[VARIABLE])):
            os._exit(1)  # nobody is left to be told
    except BlockingIOError:
        return
