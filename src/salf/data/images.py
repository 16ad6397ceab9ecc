"""Image folders: one sub-folder a class."""

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
    halves = [root / name for name in ("train", "test", "val") if (root / name).is_dir()]
    apart = len(halves) > 1 and halves[0].name == "train"
    classes = _classes(halves[0] if apart else root)
    if apart:
        if extra := set(_classes(halves[1])) - set(classes):
            raise SalfError(f"{halves[1]} has classes that {halves[0]} lacks: {sorted(extra)}.")
        train, test = ([x for c in _files(half, classes) for x in c] for half in halves[:2])
    else:
        files = [(k, each) for c in _files(root, classes) for k, each in enumerate(c, 1)]
        train, test = ([x for k, x in files if (k % HOLD_OUT == 0) == held] for held in (0, 1))
    if not train or not test:
        raise SalfError(
            f"{root} has {len(train)} training and {len(test)} test images; both need at least "
            f"one (without a test folder, every {HOLD_OUT}th image of a class is used for testing)."
        )
    inputs = torch.from_numpy(_pixels([path for path, _ in train + test]))
    labels, cut = torch.tensor([label for _, label in train + test]), len(train)
    trained, tested = Samples(inputs[:cut], labels[:cut]), Samples(inputs[cut:], labels[cut:])
    source = f"images in {root}, classes {', '.join(classes)}"
    return DataSet(f"folder:{root}", trained, tested, len(classes), source)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise SalfError(
            f"{folder} is not a folder; pass the one with a subfolder of images for each class."
        )
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise SalfError(f"{folder} has no subfolders; there must be one per class.")
    return names


def _files(folder: Path, classes: list[str]) -> list[Labelled]:
    """The images of every class; one may be missing from the test images."""
    found: list[Labelled] = []
    for label, name in enumerate(classes):
        paths = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        found.append([(path, label) for path in paths if path.suffix.lower() in SUFFIXES])
        if not found[-1] and (folder / name).is_dir():
            raise SalfError(f"the class folder {folder / name} contains no images.")
    return found


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
