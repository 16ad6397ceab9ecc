"""Data as people have them: tables, CSV files, data sets of Hugging Face, images, LEAF's JSON."""

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salf.common.errors import SalfError, in_one_line, unknown
from salf.data.samples import LABELS, OWN, DataSet, batched, every, from_tensors, pixels, samples_of
from salf.data.text import next_characters

HOLD_OUT = 6  # every sixth sample is for testing where no test data are given: MNIST's ratio
USERS = ("user", "user_id", "client", "client_id", "writer_id", "speaker")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_Columns = Mapping[str, Any]


def from_columns(
    data: Any,
    label: str = "",
    *,
    inputs: str | Sequence[str] = (),
    user: str = "",
    test: Any = None,
    name: str = OWN,
) -> DataSet:
    """Make a data set of the columns of a table, with the users that a column names.

        data = salf.data.from_columns("measurements.csv", "diagnosis", user="hospital")
        salf.train(net, data, split="natural")

    A table is a dictionary of columns, a data frame of pandas, a data set of Hugging Face, the path
    of a CSV file, or a partitioner of flwr-datasets, whose partitions are users. The label and the
    user are by default the columns of such a name, inputs all others. Labels that are text are
    classes in their order. Without `test`, another table, every sixth sample of a user, or else of
    a class, is for testing.
    """
    tables = [_columns(each) for each in (data, test) if each is not None]
    table = tables[0]
    label = label or next((each for each in table if each.lower() in LABELS), "label")
    user = user or next((each for each in table if each.lower() in USERS), "")
    used = [inputs] if isinstance(inputs, str) and inputs else list(inputs)
    used = used or [each for each in table if each not in (label, user)]
    for each in (*used, label, *([user] if user else [])):
        if each not in table or (each not in tables[-1] and each != user):
            raise unknown("column", each, table)
    rows = _inputs([[value for each in tables for value in each[column]] for column in used])
    # Numbers as they are, and names of classes by their order.
    labels = np.asarray([value for each in tables for value in each[label]])
    if labels.dtype.kind not in "iuf":
        labels = np.unique(labels, return_inverse=True)[1]
    whole, count = samples_of("all", (rows, labels)), len(table[label])
    owners = np.unique([*table[user]], return_inverse=True)[1] if user else None
    held = np.arange(len(whole)) >= count
    if test is None:
        regression = labels.dtype.kind == "f"
        groups = np.zeros(count) if regression else labels
        held = every(HOLD_OUT, groups if owners is None else owners)
    train, tested = (whole.subset(np.flatnonzero(some)) for some in (~held, held))
    found = from_tensors((train.inputs, train.labels), (tested.inputs, tested.labels), name)
    return replace(found, owners=None if owners is None else owners[~held[:count]])


def _columns(data: Any) -> _Columns:
    """A table as columns by name."""
    if isinstance(data, str | Path):
        return _read_csv(Path(data).expanduser())
    if hasattr(data, "load_partition"):
        parts = [_columns(data.load_partition(user)) for user in range(data.num_partitions)]
        joined = {name: [row for part in parts for row in part[name]] for name in parts[0]}
        sizes = [len(next(iter(part.values()))) for part in parts]
        return {**joined, USERS[0]: np.repeat(np.arange(len(parts)), sizes).tolist()}
    return {name: data[name] for name in getattr(data, "column_names", None) or data}


def _read_csv(path: Path) -> _Columns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            names, *lines = csv.reader(stream)
        columns = zip(names, zip(*lines, strict=True), strict=True)
        return {name: _numbers(texts) for name, texts in columns}
    except (OSError, ValueError) as error:
        why = f"a line of names, then lines of as many values: {error}"
        raise SalfError(f"cannot read {path} as a table ({why}).") from None


def _numbers(texts: Sequence[str]) -> Sequence[Any]:
    """The values of a column: whole numbers, numbers, or else text."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(text) for text in texts]
    return texts


def _inputs(columns: Sequence[Sequence[Any]]) -> Any:
    """One column of whatever has a shape, or columns of numbers side by side."""
    first = columns[0][0]
    if len(columns) == 1 and (hasattr(first, "convert") or np.ndim(first)):
        return batched(columns[0])
    beside = np.asarray(columns).T
    return beside.astype(np.float32) if beside.dtype.kind in "biuf" else beside


def load_csv(path: Path) -> DataSet:
    """Load a CSV file, or train.csv and test.csv in a folder."""
    files = (path / "train.csv", path / "test.csv") if path.is_dir() else (path, None)
    return from_columns(files[0], test=files[1], name=f"csv:{path}")


def load_leaf(root: Path) -> DataSet:
    """Load LEAF's JSON, with its users: a folder with `train` and `test`, or with all data."""
    halves = [root / "train", root / "test"] if (root / "test").is_dir() else [root]
    tables = [*map(_leaf, halves), None]
    return from_columns(tables[0], "y", test=tables[1], name=f"leaf:{root}")


def _leaf(folder: Path) -> _Columns:
    """The samples of all files; of text, every next character is a target."""
    x, y, users = list[Any](), list[Any](), list[str]()
    for path in sorted(folder.rglob("*.json")):
        try:
            for user, own in json.loads(path.read_text(encoding="utf-8"))["user_data"].items():
                x += own["x"]
                y += own["y"]
                users += [user] * len(own["y"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SalfError(f"{path} is no file of LEAF: {in_one_line(error)}.") from None
    if not users:
        raise SalfError(f"{folder} has no samples: pass the folder of LEAF's JSON files.")
    if isinstance(x[0], str):
        inputs, targets = next_characters([f"{said}{end}" for said, end in zip(x, y, strict=True)])
        x, y = [*inputs], [*targets]
    return {"x": x, "y": y, "user": users}


def load_folder(root: Path) -> DataSet:
    """Load images of one size: `root/CLASS/*.png`, or `root/USER/CLASS/*.png` to keep the users.

    `root/train` with `root/test` (or `root/val`) is used if both exist. Images that are all grey
    stay at one channel; otherwise all become RGB.
    """
    held = next((root / name for name in ("test", "val") if (root / name).is_dir()), root)
    apart = held != root and (root / "train").is_dir()
    table, test = _images(root / "train" if apart else root), _images(held) if apart else None
    classes = {*table["label"]}
    if test and (extra := {*test["label"]} - classes):
        raise SalfError(f"{held} has classes that {root / 'train'} lacks: {sorted(extra)}.")
    found = from_columns(table, inputs="image", test=test, name=f"folder:{root}")
    return replace(found, source=f"images in {root}, classes {', '.join(sorted(classes))}")


def _images(folder: Path) -> _Columns:
    try:
        from PIL import Image
    except ImportError as error:
        raise SalfError("image folders need Pillow: run pip install 'salf[images]'.") from error
    paths = [
        path
        for path in sorted([*folder.glob("*/*"), *folder.glob("*/*/*")])
        if path.suffix.lower() in SUFFIXES and not path.parent.name.startswith(".")
    ]
    if not paths:
        raise SalfError(f"{folder} has no images: pass a folder with a subfolder for each class.")
    images: list[NDArray[np.uint8]] = []
    for path in paths:
        try:
            with Image.open(path) as image:
                images.append(pixels(image, str(path)))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise SalfError(f"{path} cannot be read as an image: {error}.") from error
        if images[-1].shape[1:] != images[0].shape[1:]:
            raise SalfError(f"{path} has another size than {paths[0]}; all must have the same.")
    depth = max(map(len, images))
    wide = [np.repeat(image, depth // len(image), axis=0) for image in images]
    users = [path.parent.parent.name for path in paths if path.parent.parent != folder]
    found = {"image": wide, "label": [path.parent.name for path in paths]}
    return {**found, "user": users} if users else found
