"""Files that are written whole or not at all, and folders that do not stay."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which takes the place of `path` when the block ends well.

    Safe against being killed at any moment and against several processes doing so at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        # mkstemp makes private files, but a result may be shared like any other file.
        os.chmod(name, 0o644)
        with open(name, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: Any) -> None:
    """Write text or bytes (anything with a buffer)."""
    with whole_file(path) as temporary:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)


@contextmanager
def temporary_folder(name: str, place: Path | None = None) -> Iterator[Path]:
    """A folder for this account only, deleted when the block ends.

    A process that is killed cannot do that: the next one of the same name does it for it.
    """
    place = place or Path(tempfile.gettempdir())
    for left in place.glob(f"{name}-*-*"):
        with suppress(OSError):
            _delete_if_left(left)
    with tempfile.TemporaryDirectory(
        prefix=f"{name}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True
    ) as made:
        handle = os.open(made, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)  # which ends with this process, however it ends
            yield Path(made)
        finally:
            os.close(handle)


def _delete_if_left(folder: Path) -> None:
    about = folder.stat()
    if about.st_uid != os.getuid() or time.time() - about.st_ctime < 60:  # it may be being made
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
