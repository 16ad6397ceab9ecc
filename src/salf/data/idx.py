"""The idx format of MNIST and its kin: a magic number, the dimensions, then the bytes."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.data.files import DataFile, read_files
from salf.data.samples import DataSet, Samples

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


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
