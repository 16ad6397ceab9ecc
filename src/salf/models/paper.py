"""The networks of the paper's experiments."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from torch import nn

from salf.common.errors import SalfError

Shape = tuple[int, ...]

# Channels of the 3x3 convolutions; "M" halves the image.
VGG_PLANS: Mapping[int, tuple[int | str, ...]] = {
    11: (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    13: (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    16: (64, 64, "M", 128, 128, "M", *(256,) * 3, "M", *(512,) * 3, "M", *(512,) * 3, "M"),
    19: (64, 64, "M", 128, 128, "M", *(256,) * 4, "M", *(512,) * 4, "M", *(512,) * 4, "M"),
}


def mlp(shape: Shape, classes: int) -> nn.Sequential:
    """Two hidden layers of 32 and 16 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Two convolutions of 6 channels with max-pooling, then 50 hidden units.

    Pooling comes before the ReLU: max and ReLU commute, and it leaves a quarter of the work.
    """
    channels, height, width = _image(shape, "cnn", smallest=16)
    flat = 6 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, 50),
        nn.ReLU(),
        nn.Linear(50, classes),
    )


def vgg(shape: Shape, classes: int, depth: int = 11) -> nn.Sequential:
    """3x3 convolutions with batch norm, and one linear layer."""
    channels, height, width = _image(shape, f"vgg{depth}", smallest=32)
    modules: list[nn.Module] = []
    for entry in VGG_PLANS[depth]:
        if isinstance(entry, int):
            # No bias: the batch norm would take it out again.
            modules += [
                nn.Conv2d(channels, entry, 3, padding=1, bias=False),
                nn.BatchNorm2d(entry),
                nn.ReLU(),
            ]
            channels = entry
        else:
            # Before the ReLU, which is the same function on a quarter of the values.
            modules.insert(-1, nn.MaxPool2d(2))
    return nn.Sequential(
        *modules, nn.Flatten(), nn.Linear(channels * (height // 32) * (width // 32), classes)
    )


def _image(shape: Shape, model: str, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise SalfError(
            f"the model {model!r} needs images of at least {smallest}x{smallest}, "
            f"but the data have the shape {'x'.join(map(str, shape))}: use the model 'mlp'."
        )
    return shape[0], shape[1], shape[2]


PAPER_MODELS: Mapping[str, Callable[[Shape, int], nn.Sequential]] = {
    "mlp": mlp,
    "cnn": cnn,
    **{f"vgg{depth}": partial(vgg, depth=depth) for depth in VGG_PLANS},
}
