"""The paper's networks, made for a data set's shape, and a user's own by import path."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from salf.common import registry
from salf.common.errors import SalfError, in_one_line
from salf.core.inputs import unchanged

GROUP = "salf.models"  # of entry points, for packages that bring models

Shape = tuple[int, ...]

# How many 3x3 convolutions have as many channels; after each group, the image is halved.
VGG_CHANNELS = (64, 128, 256, 512, 512)
VGG_GROUPS = {11: (1, 1, 2, 2, 2), 13: (2,) * 5, 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


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
    for wide, convolutions in zip(VGG_CHANNELS, VGG_GROUPS[depth], strict=True):
        for _ in range(convolutions):
            # No bias: the batch norm would take it out again.
            conv = nn.Conv2d(channels, wide, 3, padding=1, bias=False)
            modules += [conv, nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
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
    **{f"vgg{depth}": partial(vgg, depth=depth) for depth in VGG_GROUPS},
}


def find(name: str) -> Any:
    """What makes the model of this name or import path."""
    return registry.find("model", name, PAPER_MODELS, GROUP)


def build(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """A paper's model by name, or `package.module:Name`, with weights drawn from the seed.

    A class or function of your own is called with the keywords `shape` (of one sample) and
    `classes` if it takes them, else without arguments.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        factory = find(name)
        torch.manual_seed(seed)  # again: a module that is imported just now may have drawn
        if name in PAPER_MODELS:
            return PAPER_MODELS[name](shape, classes)
        if isinstance(factory, nn.Module):
            return deepcopy(factory)  # every run starts from its weights
        offered = {"shape": shape, "classes": classes}
        model = registry.call("model", name, factory, offered)
    if not isinstance(model, nn.Module):
        raise SalfError(f"{name!r} returned a {type(model).__name__}, not a torch.nn.Module.")
    return model


def check_fit(
    model: nn.Module, inputs: Tensor, classes: int, name: str, batch_size: int | None = None
) -> Tensor:
    """The outputs in evaluation mode, or a sentence that says why the model does not fit.

    One batch is tried in training mode too: batch norm refuses a single row only there.
    """
    batch = inputs[:batch_size]
    was_training = model.training
    try:
        with unchanged(model), torch.no_grad():
            model.train()
            trained = model(batch)
            model.eval()
            outputs: Tensor = model(inputs)
    except Exception as error:  # whatever somebody else's code raises
        raise SalfError(
            f"the model {name!r} does not fit a batch of shape "
            f"{'x'.join(map(str, batch.shape))} ({batch.dtype}): {in_one_line(error)}."
        ) from None
    finally:
        model.train(was_training)
    for found, rows in ((trained, batch), (outputs, inputs)):
        if not isinstance(found, Tensor) or found.shape[:1] != rows.shape[:1]:
            raise SalfError(f"the model {name!r} must return one tensor with one row per sample.")
    if classes and (outputs.dim() < 2 or outputs.shape[1] < classes):
        raise SalfError(
            f"the model {name!r} returns outputs of shape {tuple(outputs.shape[1:])}, but the "
            f"data have {classes} classes."
        )
    return outputs
