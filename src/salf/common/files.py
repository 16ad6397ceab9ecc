"""Files that are written whole or not at all, locked folders, and temporary ones."""

import csv
import io
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from salf.common.errors import SalfError

_LOCK = ".lock"
PRIVATE = 0o600  # what is known of single users: states, records and logs


@contextmanager
def whole_file(path: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path to write to, which takes the place of `path` when the block ends well.

    Safe against being killed at any moment and against several processes doing so at once. Who may
    read the file is up to the umask; a `private` one, only its owner.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}-{secrets.token_hex(8)}{path.suffix}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(name, flags, PRIVATE if private else 0o666))  # without the umask's bits
    mode = name.stat().st_mode
    try:
        yield name
        name.chmod(mode)  # whoever wrote may have put a file of its own there
        with open(name, "r+b") as stream:  # Windows syncs only what is open for writing
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def only_ours(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an `opener` for `open`."""
    handle = os.open(path, flags, PRIVATE)
    if hasattr(os, "fchmod"):  # one that was there may be of an older version; not on Windows
        os.fchmod(handle, PRIVATE)
    return handle


def write_whole(path: Path, content: Any, private: bool = False) -> None:
    """Write text or bytes (anything with a buffer)."""
    with whole_file(path, private) as temporary:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)


def write_all(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """Write files that are all made already, so that an error leaves none behind."""
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


def folder_name(*parts: object) -> str:
    """A name of these parts that is fit for a file or folder."""
    return "-".join(re.sub(r"[^\w.]", "_", str(part)) for part in parts)


def json_text(content: Any) -> str:
    """JSON that can be read: innermost lists and objects are on one line each."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    inner = r"[\[{][^\[\]{}]*[\]}]"
    return re.sub(inner, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Lines of values as CSV; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def csv_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV, with a column for each key."""
    if not (columns := dict.fromkeys(key for record in records for key in record)):
        return ""
    return csv_text([columns, *([record.get(key) for key in columns] for record in records)])


def read_numbers(path: Path | str, *columns: str) -> list[tuple[float, ...]]:
    """The numbers of these columns of a CSV file, line by line."""
    try:
        with Path(path).open(encoding="utf-8", newline="") as stream:
            return [tuple(float(line[name]) for name in columns) for line in csv.DictReader(stream)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        why = f"there is no column {error.args[0]}" if isinstance(error, KeyError) else error
        raise SalfError(
            f"cannot read {path}: it must have numbers in the columns {', '.join(columns)} ({why})."
        ) from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; BlockingIOError if one of them is working in it.

    The system releases the lock when the process ends, however it ends. The empty lock file stays:
    deleting it would let a process that is just opening it lock a file nobody else can see.
    """
    try:
        # Not thread_local: a generator may be closed in another thread than it was started in.
        lock = FileLock(folder / _LOCK, thread_local=False).acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(f"another process is working in {folder}") from None
    with lock:
        yield


@contextmanager
def temporary_folder(name: str, place: Path | None = None) -> Iterator[Path]:
    """A folder for this account only, deleted when the block ends."""
    made = tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place, ignore_cleanup_errors=True)
    with made as folder:
        yield Path(folder)


def short_place() -> Path | None:
    """A place where a folder's path is short: that of a socket has 107 characters at most."""
    return Path("/tmp") if Path("/tmp").is_dir() else None
