"""Files of data sets: where the cache is, and how they are read."""

import gzip
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from salf.common.errors import SalfError

Bytes = NDArray[np.uint8]


class DataFile(NamedTuple):
    """The content of a file, unpacked, and its path for errors."""

    path: Path
    content: Bytes


def cache_folder() -> Path:
    """Where data sets are kept: $SALF_CACHE, else $XDG_CACHE_HOME/salf, else the system's place."""
    base = os.environ.get("XDG_CACHE_HOME")
    usual = Path(base) / "salf" if base else platformdirs.user_cache_path("salf", appauthor=False)
    return Path(os.environ.get("SALF_CACHE") or usual).expanduser()


def read_files(paths: Mapping[str, Path], parts: Iterable[str], where: Path) -> dict[str, DataFile]:
    """The files of a data set by part, unpacked if their name ends in .gz."""
    if missing := [part for part in parts if part not in paths]:
        raise SalfError(f"{where} is incomplete: it has no file for {', '.join(missing)}.")
    return {part: DataFile(path, _read(path)) for part, path in paths.items()}


def _read(path: Path) -> Bytes:
    if path.suffix != ".gz":
        return np.fromfile(path, np.uint8)
    try:
        # A bytearray, because torch wants memory that it may write to.
        return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SalfError(f"{path} cannot be unpacked: {error}.") from error
