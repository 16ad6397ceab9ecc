"""Files that are written whole or not at all, and folders that do not stay."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_MARK = ".made-by-salf"  # in temporary folders


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
    ours = re.compile(re.escape(name) + r"-\d+-[a-z0-9_]{8}")
    for left in place.glob(f"{name}-*-*"):
        if ours.fullmatch(left.name) and (left / _MARK).exists():  # nobody else's folder
            with suppress(OSError):
                _delete_if_left(left)
    with tempfile.TemporaryDirectory(
        prefix=f"{name}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True
    ) as made:
        handle = os.open(made, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)  # which ends with this process, however it ends
            Path(made, _MARK).touch()
            yield Path(made)
        finally:
            os.close(handle)


def short_place() -> Path | None:
    """Where a temporary folder's path is short: that of a socket has 107 characters at most."""
    return Path("/tmp") if Path("/tmp").is_dir() else None


def delete_left_over(folder: Path, names: Iterable[str]) -> None:
    """Delete what processes left that were killed while they wrote files of these names."""
    for name in names:
        for left in folder.glob(f".{name}-*"):
            left.unlink(missing_ok=True)


def _delete_if_left(folder: Path) -> None:
    if folder.stat().st_uid != os.getuid():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
