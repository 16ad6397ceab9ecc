"""Processes that tests start. None outlives its test, and none is waited for without a limit."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def started(*arguments, **more):
    """Python with these arguments in a process group of its own, which is killed in the end."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, start_new_session=True, text=True, **more) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(true, seconds=240.0):
    """A busy machine is no failure, so the limit is generous."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def in_group(group):
    """The names of the processes that run in a process group, by their ids (Linux)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, _, its_group = rest.split()[:3]
            if int(its_group) == group and state != "Z":
                found[int(stat.parent.name)] = name
    return found
