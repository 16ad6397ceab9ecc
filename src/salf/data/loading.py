"""From the name of a data set, as people write it, to the data set."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from salf.common import registry
from salf.common.errors import SalfError, unknown
from salf.common.progress import Report, Reporter
from salf.data.digits import NAME as DIGITS
from salf.data.digits import load_digits
from salf.data.files import cache_folder
from salf.data.generated import synthetic
from salf.data.idx import load_idx
from salf.data.images import load_folder
from salf.data.named import CLASSES, RECIPES, SHAPES, is_in, load_named
from salf.data.samples import DataSet


def load(
    spec: str,
    folder: Path | None = None,
    cache: Path | None = None,
    report: Report | None = None,
) -> DataSet:
    """Load a data set by name: `mnist`, `fashion-mnist`, `cifar10`, `digits`, `synthetic[:SEED]`,
    `idx:PATH`, `folder:PATH`, or `package.module:Name`.

    The first three are read from the cache or from `folder`, or else downloaded (see docs/data.md).
    If that fails, a SalfError is raised; no other data set is substituted. `report` receives a line
    when a download starts or takes long, or when a file is damaged; by default, it goes to the log.
    """
    kind, colon, value = spec.partition(":")
    if spec in RECIPES:
        if folder is not None and not Path(folder).is_dir():
            raise SalfError(f"the data folder {folder} does not exist.")
        return load_named(
            RECIPES[spec],
            None if folder is None else Path(folder),
            cache_folder() if cache is None else Path(cache),
            report if isinstance(report, Reporter) else Reporter(report or _LOG.warning),
        )
    if spec == DIGITS:
        return load_digits()
    if kind == "synthetic" and (value or not colon):
        if value and not (value.isascii() and value.isdigit()):
            raise SalfError(
                f"the seed in {spec!r} must be an integer of at least 0, as in synthetic:7."
            )
        return synthetic(int(value or 0))
    if kind in ("idx", "folder") and value:
        path = Path(value).expanduser()
        return load_idx(path) if kind == "idx" else load_folder(path)
    return _own(spec)


def example(spec: str, rows: int) -> tuple[Tensor, int]:
    """A batch of the shape of a data set's inputs, and the number of classes.

    Nothing is fetched for it: of the data sets that would have to be, the shape is known.
    """
    if spec in SHAPES:
        return torch.rand(rows, *SHAPES[spec]), CLASSES
    data = load(spec)
    return data.train.subset(torch.arange(min(rows, len(data.train)))).rows()[0], data.classes


GROUP = "salf.data"  # of entry points, for packages that bring data sets
_LOG = logging.getLogger("salf.data")


def _own(spec: str) -> DataSet:
    """A data set that a package or a file of one's own makes, by a call without arguments."""
    kinds = [*RECIPES, DIGITS, "synthetic", "synthetic:SEED", "idx:PATH", "folder:PATH"]
    if spec.rstrip(":") in ("synthetic", "idx", "folder"):  # which lacks its seed or path
        raise unknown("data set", spec, kinds)
    made = registry.find("data set", spec, dict.fromkeys(kinds), GROUP)
    if not isinstance(made, DataSet):
        made = registry.call("data set", spec, made, {})
    if not isinstance(made, DataSet):
        raise SalfError(
            f"{spec!r} returned a {type(made).__name__}, not a salf.DataSet: return "
            "salf.from_tensors((inputs, labels), (test inputs, test labels))."
        )
    return replace(made, name=spec)


def placed(spec: str, folder: Path) -> bool:
    """Whether a data set known by name is in a folder, to be taken from there."""
    return spec in RECIPES and is_in(RECIPES[spec], folder)
