"""Image folders: one sub-folder a class."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from salf.common.errors import SalfError
from salf.data.samples import DataSet, Samples, pixels

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
HOLD_OUT = 6  # every sixth image is for testing where no test folder exists: MNIST's ratio

Labelled = list[tuple[Path, int, int]]  # a file, its class, and its place in it from 1


def load_folder(root: Path) -> DataSet:
    """Load images of one size. Classes are the sub-folders, sorted by name.

    `root/train` with `root/test` (or `root/val`) is used if both exist. Otherwise every sixth
    image of each class, in the order of names, is kept for testing. Images that are all grey stay
    at one channel; otherwise all become RGB.
    """
    held = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if held is not None and (root / "train").is_dir():
        classes = _classes(root / "train")
        if extra := set(_classes(held)) - set(classes):
            raise SalfError(f"{held} has classes that {root / 'train'} lacks: {sorted(extra)}.")
        train, test = _files(root / "train", classes), _files(held, classes)
    else:
        classes = _classes(root)
        files = _files(root, classes)
        train = [each for each in files if each[2] % HOLD_OUT]
        test = [each for each in files if not each[2] % HOLD_OUT]
    if not train or not test:
        raise SalfError(
            f"{root} has {len(train)} training and {len(test)} test images; both need at least "
            f"one (without a test folder, every {HOLD_OUT}th image of a class is used for testing)."
        )
    inputs = torch.from_numpy(_pixels([path for path, *_ in train + test]))
    labels, cut = torch.tensor([label for _, label, _ in train + test]), len(train)
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


def _files(folder: Path, classes: list[str]) -> Labelled:
    """The images of every class; one may be missing from the test images."""
    found: Labelled = []
    for label, own in enumerate(folder / name for name in classes):
        paths = [path for path in own.glob("*") if path.suffix.lower() in SUFFIXES]
        if own.is_dir() and not paths:
            raise SalfError(f"the class folder {own} contains no images.")
        found += [(path, label, place) for place, path in enumerate(sorted(paths), 1)]
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
