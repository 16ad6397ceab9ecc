"""Make a model by name for a data set, and say in one sentence when the two do not fit."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from salf.common import registry
from salf.common.errors import SalfError
from salf.common.registry import first_line
from salf.core.graph import unchanged
from salf.models.paper import PAPER_MODELS, Shape

GROUP = "salf.models"  # of entry points, for packages that bring models


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
            f"{'x'.join(map(str, batch.shape))} ({batch.dtype}): {first_line(error)}."
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
