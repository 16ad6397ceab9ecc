"""The idx format of MNIST and its kin: a magic number, the dimensions, then the bytes."""

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salf.common.errors import SalfError
from salf.data.samples import DataSet, Samples

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


class DataFile(NamedTuple):
    """The content of a file, unpacked, and its path for errors."""

    path: Path
    content: NDArray[np.uint8]


def load_idx(folder: Path) -> DataSet:
    """Load any folder with the four idx files of a data set, plain or .gz."""
    train, test = decode_idx(read_files(find_parts(folder), PARTS, folder))
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return DataSet(f"idx:{folder}", train, test, classes, source=f"idx files in {folder}")


def decode_idx(files: Mapping[str, DataFile]) -> tuple[Samples, Samples]:
    """Training and test samples."""
    return _half(files, "train"), _half(files, "t10k")


def _half(files: Mapping[str, DataFile], half: str) -> Samples:
    images, labels = files[f"{half}-images"], files[f"{half}-labels"]
    x, y = _array(images), _array(labels)
    if x.dim() not in (3, 4) or y.dim() != 1 or len(x) != len(y) or len(x) == 0:
        raise SalfError(
            f"{labels.path} has shape {tuple(y.shape)} and {images.path} {tuple(x.shape)}: "
            "images have 3 or 4 dimensions, and each of them one label."
        )
    return Samples(x.unsqueeze(1) if x.dim() == 3 else x, y.long())


def read_files(paths: Mapping[str, Path], parts: Iterable[str], where: Path) -> dict[str, DataFile]:
    """The files of a data set by part, unpacked if their name ends in .gz."""
    if missing := [part for part in parts if part not in paths]:
        raise SalfError(f"{where} is incomplete: it has no file for {', '.join(missing)}.")
    return {part: DataFile(path, _read(path)) for part, path in paths.items()}


def _read(path: Path) -> NDArray[np.uint8]:
    if path.suffix != ".gz":
        return np.fromfile(path, np.uint8)
    try:
        # A bytearray, because torch wants memory that it may write to.
        return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SalfError(f"{path} cannot be unpacked: {error}.") from error


def find_parts(folder: Path) -> dict[str, Path]:
    """Which file of a folder is which part, told by its name; a plain file goes before its .gz."""
    if not folder.is_dir():
        raise SalfError(f"{folder} is not a folder; pass the one that contains the four idx files.")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # sorted: "name" comes before "name.gz"
        name = path.name.lower()
        match = re.match(r"(?!\.).*(train|t10k|test).*(images|labels)", name)
        if match is None or "idx" not in name or not path.is_file():
            continue
        part = f"{match[1].replace('test', 't10k')}-{match[2]}"
        if part in found and path.name != found[part].name + ".gz":
            raise SalfError(
                f"{folder} has more than one file for {part}: {found[part].name} and {path.name}."
            )
        found.setdefault(part, path)
    return found


def _array(file: DataFile) -> Tensor:
    """The array of unsigned bytes in an idx file, which is checked to be one and complete."""
    name, content = file
    # Magic number: two zeros, the type (8 is unsigned byte), the number of dimensions.
    start = 4 + 4 * int(content[3]) if bytes(content[:3]) == b"\0\0\x08" and len(content) > 3 else 4
    if not 4 < start <= len(content):
        raise SalfError(f"{name} is not an idx file of bytes, or its header ends early.")
    shape = [int(size) for size in content[4:start].view(np.dtype(">u4"))]
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise SalfError(
            f"{name} is damaged: shape {tuple(shape)} needs {expected} bytes, "
            f"but it has {len(content)}."
        )
    return torch.from_numpy(content[start:]).view(shape)
