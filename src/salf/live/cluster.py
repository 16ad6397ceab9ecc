"""A Ray to work with: one of our own that only this machine reaches, or one that is there."""

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from salf.common.errors import ClusterLost, SalfError, in_one_line
from salf.common.files import short_place, temporary_folder
from salf.common.process import TERMINATED, sigterm_as_exit, uninterrupted

FEDERATION = "salf"  # the namespace in which users are looked for
STOP = 1.0  # seconds that processes of a Ray of our own have to end before they are killed
# Seconds without an answer from the GCS after which the cluster counts as lost. Ray itself waits
# for a minute, in which its calls block, and then kills this process.
LOST = 3.0

# Answers up to this size come with the message that a call is over, and not by way of Ray's store:
# a third less time for a round of 1 MB. Models of more would make these messages too large.
_INLINE = 4 * 2**20

# Users give way to their server, but hardly to other programs: with Ray's own 15, two busy
# programs on two cores leave them next to nothing.
_NICENESS = 1

# What keeps a Ray of our own to ourselves. Ray reads it when it is imported, and never again.
_OURS = {
    "RAY_AUTH_MODE": "token",
    # Made for systems whose firewalls ask about every port: everything listens on loopback only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@contextmanager
def cluster(address: str | None = None, federation: str = FEDERATION, **more: Any) -> Iterator[str]:
    """A Ray of our own, or with an address the one that is there; gives its dashboard's address.

    Our own listens on the loopback address only, asks for a token that is known to this process
    and those started from it, and is ended afterwards with all that runs in it. For another, the
    environment says how to get in, as Ray has it (RAY_AUTH_MODE, RAY_AUTH_TOKEN, ...). `more` is
    passed to `ray.init`.
    """
    settings: dict[str, Any] = {
        "address": address or "local",
        "namespace": federation,
        "log_to_driver": False,
        "configure_logging": False,
        **more,
    }
    folder = None
    with ExitStack() as stack:
        stack.enter_context(sigterm_as_exit())
        host, _, port = (address or "").rpartition(":")
        # Ray itself would go on trying for minutes. Without a port it is one of Ray's names.
        if port.isdigit() and not _listens(host, int(port), timeout=5.0):
            raise SalfError(
                f"cannot connect to Ray: nothing answers at {address}. "
                "Start it there with `ray start --head`."
            )
        if address is None:
            _keep_to_ourselves()
            # Only for this account, and gone afterwards; Ray's own folder is neither.
            folder = stack.enter_context(temporary_folder("salf-ray", short_place()))
            settings |= {
                "include_dashboard": False,
                "num_cpus": os.cpu_count(),
                "_temp_dir": str(folder / "ray"),  # Ray opens it to all
                "_system_config": {
                    "max_direct_call_object_size": _INLINE,
                    "worker_niceness": _NICENESS,
                },
            }
        ray = _import()
        if not ray.is_initialized():  # else it is the program's own, and ray.init refuses
            stack.callback(_shut_down, ray, folder)
        try:
            with _our_sigterm():
                dashboard = ray.init(**settings).dashboard_url
        except (ConnectionError, ray.exceptions.RayError, ValueError, RuntimeError) as error:
            raise SalfError(f"cannot connect to Ray: {in_one_line(error)}") from None
        yield dashboard or ""


class Pulse:
    """Whether the cluster still runs: its GCS, which knows all nodes and actors, takes calls."""

    def __init__(self) -> None:
        host, _, port = _import().get_runtime_context().gcs_address.rpartition(":")
        self._address = host, int(port)
        self._answered = time.monotonic()

    def check(self) -> bool:
        """Return whether the GCS answers; raise `ClusterLost` if it has not for `LOST` seconds."""
        if answers := _listens(*self._address):
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered >= LOST:
            at = "{}:{}".format(*self._address)
            raise ClusterLost(f"the Ray cluster ended: its GCS at {at} does not answer.")
        return answers


@contextmanager
def _our_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which `ray.init` replaces by one that exits with code 15."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        raise SystemExit(TERMINATED) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _shut_down(ray: Any, folder: Path | None) -> None:
    """Disconnect, and end all processes of our own Ray, the one with its files in this folder.

    Without a GCS, Ray leaves agents and users running for up to a minute.
    """
    import psutil  # which comes with Ray

    with uninterrupted():
        ours = []
        for child in psutil.Process().children() if folder else ():
            with suppress(psutil.Error):  # it has ended
                if any(str(folder) in argument for argument in child.cmdline()):
                    ours += [child, *child.children(recursive=True)]
        ray.shutdown()
        for process in psutil.wait_procs(ours, timeout=STOP)[1]:
            with suppress(psutil.Error):
                process.kill()


def _listens(host: str, port: int, timeout: float = 1.0) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout).close()
    except (OSError, OverflowError):
        return False
    return True


def _keep_to_ourselves() -> None:
    if "ray" in sys.modules and any(os.environ.get(k) != v for k, v in _OURS.items()):
        wanted = " and ".join(f"{name}={value}" for name, value in _OURS.items())
        raise SalfError(
            f"Ray was imported before salf could restrict it to this machine: set {wanted} in "
            "the environment, or import ray later."
        )
    os.environ.update(_OURS)
    # One for all clusters of this process, because Ray remembers the first.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def _import() -> Any:
    # Leave a user's accelerators as they are; Ray warns until it is told.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise SalfError("Ray is not installed: run pip install 'salf[ray]'.") from None
    return ray
