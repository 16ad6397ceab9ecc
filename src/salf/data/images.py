"""Image folders: one sub-folder a class."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from salf.common.errors import SalfError
from salf.data.samples import DataSet, Samples, pixels

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
HOLD_OUT = 6  # every sixth image is for testing where no test folder exists: MNIST's ratio

Labelled = list[tuple[Path, int]]


def load_folder(root: Path) -> DataSet:
    """Load images of one size. Classes are the sub-folders, sorted by name.

    `root/train` with `root/test` (or `root/val`) is used if both exist. Otherwise every sixth
    image of each class, in the order of names, is kept for testing. Images that are all grey stay
    at one channel; otherwise all become RGB.
    """
    if not root.is_dir():
        raise SalfError(
            f"{root} is not a folder; pass the one with a subfolder of images for each class."
        )
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if (root / "train").is_dir() and tests:
        classes = _classes(root / "train")
        if extra := set(_classes(tests[0])) - set(classes):
            raise SalfError(f"{tests[0]} has classes that {root / 'train'} lacks: {sorted(extra)}.")
        train, test = _files(root / "train", classes), _files(tests[0], classes)
    else:
        classes = _classes(root)
        train, test = _hold_out(_files(root, classes))
    if not train or not test:
        raise SalfError(
            f"{root} has {len(train)} training and {len(test)} test images; both need at least "
            f"one (without a test folder, every {HOLD_OUT}th image of a class is used for testing)."
        )
    inputs = torch.from_numpy(_pixels([path for path, _ in train + test]))
    labels = torch.tensor([label for _, label in train + test])
    cut = len(train)
    return DataSet(
        f"folder:{root}",
        Samples(inputs[:cut], labels[:cut]),
        Samples(inputs[cut:], labels[cut:]),
        classes=len(classes),
        source=f"images in {root}, classes {', '.join(classes)}",
    )


def _classes(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise SalfError(f"{folder} has no subfolders; there must be one per class.")
    return names


def _files(folder: Path, classes: list[str]) -> Labelled:
    files: Labelled = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue  # a class may be missing from the test images
        images = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in SUFFIXES)
        if not images:
            raise SalfError(f"the class folder {folder / name} contains no images.")
        files += [(path, label) for path in images]
    return files


def _hold_out(files: Labelled) -> tuple[Labelled, Labelled]:
    """Every sixth file of a class is for testing."""
    halves: tuple[Labelled, Labelled] = [], []
    seen: Counter[int] = Counter()
    for path, label in files:
        seen[label] += 1
        halves[seen[label] % HOLD_OUT == 0].append((path, label))
    return halves


def _pixels(paths: list[Path]) -> NDArray[np.uint8]:
    """All images as [N, C, H, W]."""
    images = [_decode(path) for path in paths]
    height, width = images[0].shape[1:]
    for path, image in zip(paths, images, strict=True):
        if image.shape[1:] != (height, width):
            raise SalfError(
                f"{path} is {image.shape[2]} x {image.shape[1]} pixels but {paths[0]} is "
                f"{width} x {height}; all images must have the same size."
            )
    if any(len(image) == 3 for image in images):
        images = [np.broadcast_to(image, (3, height, width)) for image in images]
    return np.stack(images)


def _decode(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise SalfError("image folders need Pillow: run pip install 'salf[images]'.") from error
    try:
        with Image.open(path) as image:
            return pixels(image, str(path))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise SalfError(f"{path} cannot be read as an image: {error}.") from error
