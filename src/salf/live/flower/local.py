"""A Flower federation on this machine, to try and to test: a SuperLink and its SuperNodes.

It listens on the loopback interface only, keeps its files in a folder of its own, and leaves
neither processes nor files behind, unless it is killed. It asks nobody who they are: other accounts
of this machine can run an app in it, too.
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import IO, TypeVar
from urllib.request import urlopen

import tomli_w

from salf.common.errors import SalfError
from salf.common.files import locked, temporary_folder
from salf.common.process import sigterm_as_exit, uninterrupted

LOOPBACK = "127.0.0.1"
CONNECTION = "salf"  # what the federation is called in Flower's own configuration
START = 60.0  # seconds a SuperLink or SuperNode may take until it is ready
STOP = 5.0  # seconds in which processes that were killed are gone
PARENT = "SALF_PARENT"  # in the environment of all processes of a federation: its folder
LOOK = 0.5  # seconds between two looks whether the process that began it is there

Value = str | int | float | bool
Found = TypeVar("Found")


class LocalFederation:
    """A SuperLink and so many SuperNodes.

        with LocalFederation(3) as federation:
            for line in federation.run(Path("examples/flower-mnist"), {"deadline": 2.0}):
                print(line)

    Ctrl-C and SIGTERM end the block in order. When this process is killed, SuperLink and SuperNodes
    end with it, and so does within a second what they have started for an app that calls
    `end_with_parent`, as salf's own does.
    """

    def __init__(self, nodes: int) -> None:
        if sys.platform == "win32":
            raise SalfError("a local Flower federation needs Linux or macOS; on Windows use WSL.")
        self._nodes = nodes
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "LocalFederation":
        with ExitStack() as stack:
            stack.enter_context(sigterm_as_exit())
            self.home = stack.enter_context(temporary_folder("salf-flower"))
            stack.enter_context(locked(self.home))  # for `end_with_parent`
            self._env = {**os.environ, **self._environment()}
            stack.callback(self._end)
            self._start_superlink()
            self._start_supernodes()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def run(self, app: Path, config: Mapping[str, Value] | None = None) -> Iterator[str]:
        """Run the app in this folder with these changes to its run config; the lines of its log.

        Its keys must be in the app's pyproject.toml. A run that fails is a `SalfError` after the
        last line.
        """
        settings = self.home / "run.toml"
        settings.write_text(tomli_w.dumps(config or {}), encoding="utf-8")
        command = ["run", str(app.resolve()), CONNECTION, "--stream", "--run-config", str(settings)]
        last, failed, process = "", "", self._popen("flwr", *command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "Exit Code: " in line:  # after the traceback of the ServerApp
                    failed = last.rpartition("SalfError: ")[2]
                last = line.rstrip() or last
                yield line.rstrip("\n")
            if process.wait() != 0:
                raise SalfError(f"the app could not be run: {last}")
            if failed:
                raise SalfError(f"the app failed: {failed}")
        finally:
            process.kill()
            process.wait()

    def node_id(self, number: int) -> str:
        """What SuperNode `number` (0, 1, ...) is called as a user."""
        name = _node(number)
        line = self._wait_for(name, lambda: re.search(r"SuperNode ID: (\d+)", self._log_of(name)))
        return line[1]

    def _environment(self) -> dict[str, str]:
        return {
            # Own methods, data and models are found where this program finds them.
            "PYTHONPATH": os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; else 1
            "OMP_NUM_THREADS": "1",  # each node a device of its own, not all of this machine
            "PYTHONUNBUFFERED": "1",
            PARENT: str(self.home),
        }

    def _end(self) -> None:
        """End SuperLink and SuperNodes, and on Linux what they started: all in our environment.

        Returns when they are gone; one may have started another while it was looked for.
        """
        with uninterrupted():
            for process in self._processes.values():
                process.kill()
                process.wait()
            until, found = time.monotonic() + STOP, True
            while found and time.monotonic() < until:
                found = False
                for folder in Path("/proc").glob("[0-9]*"):
                    with suppress(OSError):
                        if f"FLWR_HOME={self.home}\0".encode() in (folder / "environ").read_bytes():
                            os.kill(int(folder.name), signal.SIGKILL)
                            found = True
                time.sleep(0.05)

    def _start_superlink(self) -> None:
        port = _free_port()
        self._address = f"{LOOPBACK}:{port}"
        connection = {CONNECTION: {"address": self._address, "insecure": True}}
        (self.home / "config.toml").write_text(tomli_w.dumps({"superlink": connection}))
        self._background(
            "superlink",
            "flower-superlink",
            *("--insecure", "--host", LOOPBACK, "--port", str(port)),
            "--disable-runtime-dependency-installation",
        )
        self._wait_for("superlink", self._is_healthy)

    def _is_healthy(self) -> bool:
        with suppress(OSError), urlopen(f"http://{self._address}/health", timeout=1.0):
            return True
        return False

    def _start_supernodes(self) -> None:
        for number in range(self._nodes):
            self._background(
                _node(number),
                "flower-supernode",
                *("--insecure", "--superlink", self._address),
                *("--host", LOOPBACK, "--port", str(_free_port())),
                *("--node-config", f"partition-id={number} num-partitions={self._nodes}"),
            )
        for number in range(self._nodes):
            self.node_id(number)

    def _background(self, name: str, command: str, *arguments: str) -> None:
        with (self.home / f"{name}.log").open("wb") as output:
            self._processes[name] = self._popen(command, *arguments, stdout=output)

    def _popen(
        self, command: str, *arguments: str, stdout: int | IO[bytes]
    ) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C is for this process, which then ends the others.
        return subprocess.Popen(
            [command, *arguments],
            env=self._env,
            cwd=self.home,  # elsewhere flwr may take the connection's name for that of a folder
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            encoding="utf-8",
            errors="replace",
        )

    def _wait_for(self, name: str, ready: Callable[[], Found | None]) -> Found:
        """What `ready` finds, unless the process that starts has ended or takes too long."""
        until = time.monotonic() + START
        while not (found := ready()):
            if self._processes[name].poll() is not None or time.monotonic() > until:
                last = (self._log_of(name).strip().splitlines() or ["it wrote nothing"])[-1]
                raise SalfError(f"Flower's {name} did not start: {last}")
            time.sleep(0.1)
        return found

    def _log_of(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def _node(number: int) -> str:
    return f"supernode-{number}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone, however it went (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end_with_parent() -> None:
    """End this process when the one that began its federation is gone, however it went.

    Flower ends it by SIGINT, which is ignored in the background of a script, and the ServerApp's
    has the files of the run. The federation's folder is locked for as long as the process that
    began it lives. Without a local federation this does nothing.
    """
    if (folder := os.environ.get(PARENT)) is not None:
        Thread(target=_watch, args=(Path(folder),), daemon=True).start()


def _watch(folder: Path) -> None:
    while True:
        with suppress(BlockingIOError), locked(folder):
            os._exit(1)  # nobody is left to be told
        time.sleep(LOOK)
