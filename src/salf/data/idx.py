"""The idx format of MNIST and its kin: a magic number, the dimensions, then the bytes."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.data.files import Bytes, read_bytes, sha256
from salf.data.samples import DataSet, Samples

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def load_idx(folder: Path) -> DataSet:
    """Load any folder with the four idx files of a data set, plain or .gz."""
    if not folder.is_dir():
        raise SalfError(f"{folder} is not a folder; pass the one that contains the four idx files.")
    train, test = read_idx(folder)
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return DataSet(f"idx:{folder}", train, test, classes, source=f"idx files in {folder}")


def read_idx(folder: Path, checksums: Mapping[str, str] | None = None) -> tuple[Samples, Samples]:
    """Training and test samples of a folder, checked by the sha256 of each part if it is given."""
    files = find_parts(folder)
    if missing := [part for part in PARTS if part not in files]:
        raise SalfError(
            f"{folder} has no idx file for {', '.join(missing)}; "
            "expected names such as train-images-idx3-ubyte or train-images-idx3-ubyte.gz."
        )
    content = {part: read_bytes(path) for part, path in files.items()}
    for part, expected in (checksums or {}).items():
        if sha256(content[part]) != expected:
            raise SalfError(f"{files[part]} is damaged or another file (sha256 differs)")

    def samples(half: str) -> Samples:
        images, labels = files[f"{half}-images"], files[f"{half}-labels"]
        x = parse_idx(content[f"{half}-images"], str(images))
        y = parse_idx(content[f"{half}-labels"], str(labels))
        if x.dim() not in (3, 4):
            raise SalfError(f"{images} has {x.dim()} dimensions; images have 3 or 4.")
        if y.dim() != 1 or len(x) != len(y) or len(x) == 0:
            raise SalfError(
                f"{labels} has shape {tuple(y.shape)}, but {images} has {len(x)} images; there "
                "must be one label per image, and at least one image."
            )
        return Samples(x.unsqueeze(1) if x.dim() == 3 else x, y.to(torch.int64))

    return samples("train"), samples("t10k")


def find_parts(folder: Path) -> dict[str, Path]:
    """Which file of a folder is which part, told by its name; a plain file goes before its .gz."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # sorted: "name" comes before "name.gz"
        part = _part(path.name.lower())
        if part is None or not path.is_file():
            continue
        if part in found and path.name != found[part].name + ".gz":
            raise SalfError(
                f"{folder} has more than one file for {part}: {found[part].name} and {path.name}."
            )
        found.setdefault(part, path)
    return found


def _part(name: str) -> str | None:
    found = re.match(".*(train|t10k|test).*(images|labels)", name)
    if not found or name.startswith(".") or "idx" not in name:
        return None
    return f"{found[1].replace('test', 't10k')}-{found[2]}"


def parse_idx(content: Bytes, name: str) -> Tensor:
    """Read one idx file of unsigned bytes, checking that it is one and that it is complete."""
    # Magic number: two zeros, the type (8 is unsigned byte), the number of dimensions.
    if len(content) < 4 or content[0] or content[1] or content[2] != 8:
        raise SalfError(
            f"{name} is not an idx file of bytes: it does not begin with that magic number."
        )
    start = 4 + 4 * int(content[3])
    if start == 4 or len(content) < start:
        raise SalfError(f"{name} is damaged: its header ends early.")
    shape = [int(size) for size in content[4:start].view(np.dtype(">u4"))]
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise SalfError(
            f"{name} is damaged: shape {tuple(shape)} needs {expected} bytes, "
            f"but it has {len(content)}."
        )
    return torch.from_numpy(content[start:]).view(shape)
