"""Files of jobs on nodes that have no file system in common with the program's machine.

Files have the same absolute path everywhere. What a job reads is fetched from Ray's object store,
once per node; what it writes is sent back to the desk, a process on the program's machine.
"""

import hashlib
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from filelock import FileLock, Timeout

from salf.common.errors import SalfError
from salf.common.files import write_whole

Contents = dict[str, bytes]  # by the path inside a folder; "." is a file itself


Keep = Callable[[Contents, list[str]], None]  # gets files that have changed, and names of others


class Seen(NamedTuple):
    """How a file was when it was sent: it has changed if one of these has."""

    modified: int
    size: int


def contents(place: Path) -> Contents:
    """All files of a folder, or a file."""
    return {name: path.read_bytes() for name, path in _files(place).items()}


def write(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a place, each whole."""
    for name, content in files.items():
        write_whole(place / name if name != "." else place, content)


def digest(files: Contents) -> str:
    """What tells the content of files from that of others."""
    found = hashlib.sha256()
    for name in sorted(files):
        found.update(f"{name}:{len(files[name])}:".encode() + files[name])
    return found.hexdigest()


def fetch(place: Path, expected: str, content: Callable[[], Contents]) -> None:
    """Put what a job reads where it expects it, unless it is there.

    What a node has there of its own stays as it is; a job that expects something else is refused.
    """
    with _here(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.parent / f".{place.name}.lock"):
            if not place.exists():
                new = place.with_name(f".{place.name}.new")  # a folder is there whole or not at all
                _remove(new)
                write(new, content())
                new.rename(place)
            elif digest(contents(place)) != expected:
                raise SalfError(
                    f"on the node {socket.gethostname()}, {place} differs from that of the "
                    "program: delete it there, or share the folder."
                )


class Outbox:
    """The folder or file that a job writes on a node, given to `keep` as it changes.

    It begins with what earlier tries have kept.
    """

    def __init__(self, place: Path, kept: Contents, keep: Keep) -> None:
        self.place, self._keep = place, keep
        self._mark = place.with_name(f".{place.name}.cluster")  # that the folder is a job's
        self._lock = FileLock(self._mark, thread_local=False)
        with _here(place):
            if place.exists() and not self._mark.exists():
                raise SalfError(
                    f"the node {socket.gethostname()} has a folder {place} of its own: use another "
                    "folder, or one that all nodes share."
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                raise SalfError(
                    f"on the node {socket.gethostname()}, another program's job writes {place}: "
                    "use another folder."
                ) from None
            _remove(place)  # of an earlier try that was cut off
            write(place, kept)
        self._seen, self._sent = self._now(), monotonic()

    def __enter__(self) -> "Outbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.send()
        _remove(self.place)
        self._mark.unlink(missing_ok=True)
        self._lock.release()

    def send_after(self, seconds: float) -> None:
        """Send what has changed if the last time is so long ago."""
        if monotonic() - self._sent >= seconds:
            self.send()

    def send(self) -> None:
        now = self._now()
        changed = [name for name, seen in now.items() if self._seen.get(name) != seen]
        changed.sort(key=lambda name: now[name].modified)  # as the job wrote them
        gone = [name for name in self._seen if name not in now]
        if changed or gone:
            files = _files(self.place)
            read = {name: files[name].read_bytes() for name in changed}
            self._keep(read, gone)
        self._seen, self._sent = now, monotonic()

    def _now(self) -> dict[str, Seen]:
        stats = {name: path.stat() for name, path in _files(self.place).items()}
        return {name: Seen(stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


def keep(place: Path, files: Mapping[str, bytes], gone: Sequence[str]) -> None:
    """Do on the program's machine what a job did on a node."""
    write(place, files)
    for name in gone:
        (place / name).unlink(missing_ok=True)


def _files(place: Path) -> dict[str, Path]:
    """Files by name, without locks and what is still being written."""
    if place.is_file():
        return {".": place}
    found = {path.relative_to(place): path for path in sorted(place.rglob("*")) if path.is_file()}
    return {
        str(name): path
        for name, path in found.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


@contextmanager
def _here(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SalfError(
            f"the node {socket.gethostname()} cannot write {place} ({error.strerror}): use a "
            "folder that can be made on all nodes, or that they share."
        ) from None
