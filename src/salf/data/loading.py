"""From the name of a data set, as people write it, to the data set."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from salf.common import Report, registry
from salf.common.errors import SalfError, unknown
from salf.data.digits import NAME as DIGITS
from salf.data.digits import load_digits
from salf.data.images import load_folder
from salf.data.named import RECIPES, load_named
from salf.data.samples import DataSet, Samples


def load(
    spec: str,
    folder: Path | None = None,
    cache: Path | None = None,
    report: Report | None = None,
) -> DataSet:
    """Load a data set by name: `mnist`, `fashion-mnist`, `cifar10`, `digits`, `synthetic[:SEED]`,
    `folder:PATH`, or `package.module:Name`.

    The first three are read from the cache or from `folder`, or else downloaded (see docs/data.md);
    no other data set is substituted. `report` receives a line about every step of a download and
    about damaged files; by default, it goes to the log.
    """
    kind, colon, value = spec.partition(":")
    if spec in RECIPES:
        if folder is not None and not folder.is_dir():
            raise SalfError(f"the data folder {folder} does not exist.")
        return load_named(RECIPES[spec], folder, cache or cache_folder(), report or _LOG.warning)
    if spec == DIGITS:
        return load_digits()
    if kind == "synthetic" and (value or not colon):
        if value and not (value.isascii() and value.isdigit()):
            raise SalfError(
                f"the seed in {spec!r} must be an integer of at least 0, as in synthetic:7."
            )
        return synthetic(int(value or 0))
    if kind in FROM_PATH and value:
        return FROM_PATH[kind](Path(value).expanduser())
    return _own(spec)


def cache_folder() -> Path:
    """Where data sets are kept: $SALF_CACHE, else $XDG_CACHE_HOME/salf, else the system's place."""
    base = os.environ.get("XDG_CACHE_HOME")
    usual = Path(base) / "salf" if base else platformdirs.user_cache_path("salf", appauthor=False)
    return Path(os.environ.get("SALF_CACHE") or usual).expanduser()


def example(spec: str, rows: int) -> tuple[Tensor, int]:
    """A batch of the shape of a data set's inputs, and the number of classes.

    Nothing is fetched for it: of the data sets that would have to be, the shape is known.
    """
    if spec in RECIPES:
        return torch.rand(rows, *RECIPES[spec].shape), RECIPES[spec].classes
    data = load(spec)
    return data.train.subset(torch.arange(min(rows, len(data.train)))).rows()[0], data.classes


FROM_PATH = {"folder": load_folder}
GROUP = "salf.data"  # of entry points, for packages that bring data sets
_LOG = logging.getLogger("salf.data")


def _own(spec: str) -> DataSet:
    """A data set that a package or a file of one's own makes, by a call without arguments."""
    kinds = [*RECIPES, DIGITS, "synthetic", "synthetic:SEED", *(f"{at}:PATH" for at in FROM_PATH)]
    if spec.rstrip(":") in ("synthetic", *FROM_PATH):  # which lacks its seed or path
        raise unknown("data set", spec, kinds)
    made = registry.find("data set", spec, dict.fromkeys(kinds), GROUP)
    made = made if isinstance(made, DataSet) else registry.call("data set", spec, made, {})
    if not isinstance(made, DataSet):
        raise SalfError(
            f"{spec!r} returned a {type(made).__name__}, not a salf.DataSet: return "
            "salf.from_tensors((inputs, labels), (test inputs, test labels))."
        )
    return replace(made, name=spec)


# ---- made from a seed: for tests, demos, and machines without any data ------------------------

CLASSES = 10
SIDE = 28  # pixels
CELL = 4  # pixels between the points of the coarse grid that prototypes are smoothed from
SHIFT = 3  # an image shows its prototype moved by up to this many pixels each way
NOISE = 1.4  # in units of the prototypes' own spread


def synthetic(seed: int = 0, train: int = 6000, test: int = 1000) -> DataSet:
    """Draw smooth class prototypes, then images of them: shifted, scaled and noisy, as uint8.

    Hard enough that a small network needs some hundred steps, easy enough that it gets there.
    """
    rng = np.random.default_rng(seed)
    windows = sliding_window_view(_prototypes(rng), (SIDE, SIDE), axis=(1, 2))
    drawn, held = (_draw(rng, windows, count) for count in (train, test))
    return DataSet(f"synthetic:{seed}", drawn, held, CLASSES, f"made from seed {seed}")


def _prototypes(rng: np.random.Generator) -> NDArray[np.float32]:
    """Smooth random images, with a margin of SHIFT on every side to move them in."""
    side = SIDE + 2 * SHIFT
    grid = side // CELL + 2
    image = rng.standard_normal((CLASSES, grid, grid), dtype=np.float32)
    # Linear interpolation along one axis after the other. No matrix product: its last bits depend
    # on the machine, and the same seed must give the same bytes everywhere.
    at = np.arange(side, dtype=np.float32) / CELL
    low = at.astype(np.int64)
    part = (at - low).astype(np.float32)
    for axis, share in ((1, part[:, None]), (2, part)):
        image = image.take(low, axis) * (1 - share) + image.take(low + 1, axis) * share
    return image


def _draw(rng: np.random.Generator, windows: NDArray[np.float32], count: int) -> Samples:
    # As many of each class as of any other, give or take one.
    labels = rng.permutation(np.arange(count) % CLASSES)
    down, right = rng.integers(0, 2 * SHIFT + 1, size=(2, count))
    image = windows[labels, down, right]
    image = image * rng.uniform(0.5, 1.5, (count, 1, 1)).astype(np.float32)
    image += NOISE * rng.standard_normal((count, SIDE, SIDE), dtype=np.float32)
    pixels = np.clip(128 + 40 * image, 0, 255).astype(np.uint8)
    return Samples(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels))
