"""A data set made from a seed: for tests, demos, and machines without any data."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from salf.common.errors import SalfError
from salf.data.samples import DataSet, Samples

CELL = 4  # pixels between the points of the coarse grid that prototypes are smoothed from
SHIFT = 3  # an image shows its prototype moved by up to this many pixels each way
NOISE = 1.4  # in units of the prototypes' own spread

Images = NDArray[np.float32]


def synthetic(
    seed: int = 0,
    train: int = 6000,
    test: int = 1000,
    shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
) -> DataSet:
    """Draw smooth class prototypes, then images of them: shifted, scaled and noisy, as uint8.

    Hard enough that a small network needs some hundred steps, easy enough that it gets there.
    """
    for name, value in (("train", train), ("test", test), ("classes", classes)):
        if value < 1:
            raise SalfError(f"{name} must be at least 1, not {value}.")
    if len(shape) != 3 or min(shape) < 1:
        raise SalfError(f"shape must be (channels, height, width), each above 0, not {shape}.")
    if seed < 0:
        raise SalfError(f"the seed must be at least 0, not {seed}.")
    rng = np.random.default_rng(seed)
    prototypes = _prototypes(rng, classes, shape)
    return DataSet(
        f"synthetic:{seed}",
        train=_draw(rng, prototypes, train),
        test=_draw(rng, prototypes, test),
        classes=classes,
        source=f"made from seed {seed}",
    )


def _prototypes(rng: np.random.Generator, classes: int, shape: tuple[int, int, int]) -> Images:
    """Smooth random images, with a margin of SHIFT on every side to move them in."""
    channels, *sides = shape
    sides = [side + 2 * SHIFT for side in sides]
    grid = [side // CELL + 2 for side in sides]
    image = rng.standard_normal((classes, channels, *grid), dtype=np.float32)
    # Linear interpolation along one axis after the other. No matrix product: its last bits depend
    # on the machine, and the same seed must give the same bytes everywhere.
    for axis, side in zip((2, 3), sides, strict=True):
        at = np.arange(side, dtype=np.float32) / CELL
        low = at.astype(np.int64)
        part = (at - low).astype(np.float32).reshape((-1, 1) if axis == 2 else (1, -1))
        image = image.take(low, axis) * (1 - part) + image.take(low + 1, axis) * part
    return image


def _draw(rng: np.random.Generator, prototypes: Images, count: int) -> Samples:
    classes, channels, *sides = prototypes.shape
    height, width = (side - 2 * SHIFT for side in sides)
    # As many of each class as of any other, give or take one.
    labels = rng.permutation(np.arange(count) % classes)
    down, right = rng.integers(0, 2 * SHIFT + 1, size=(2, count))
    windows = sliding_window_view(prototypes, (height, width), axis=(2, 3))
    image = windows[labels, :, down, right]
    image = image * rng.uniform(0.5, 1.5, (count, 1, 1, 1)).astype(np.float32)
    image += NOISE * rng.standard_normal((count, channels, height, width), dtype=np.float32)
    pixels = np.clip(128 + 40 * image, 0, 255).astype(np.uint8)
    return Samples(torch.from_numpy(pixels), torch.from_numpy(labels))
