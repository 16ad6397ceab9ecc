"""Files in the cache: where they lie, how they are read, and what they hash to."""

import gzip
import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from salf.common.errors import SalfError

Bytes = NDArray[np.uint8]


def cache_folder() -> Path:
    """Where data sets are kept: $SALF_CACHE, else $XDG_CACHE_HOME/salf, else the system's place."""
    base = os.environ.get("XDG_CACHE_HOME")
    usual = Path(base) / "salf" if base else platformdirs.user_cache_path("salf", appauthor=False)
    return Path(os.environ.get("SALF_CACHE") or usual).expanduser()


def sha256(content: Bytes) -> str:
    """The checksum in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(content).data).hexdigest()


def read_bytes(path: Path) -> Bytes:
    """The contents of a file, unpacked if its name ends in .gz."""
    if path.suffix != ".gz":
        return np.fromfile(path, np.uint8)
    try:
        # A bytearray, because torch wants memory that it may write to.
        return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SalfError(f"{path} cannot be unpacked: {error}.") from error
