"""Make a model by name for a data set, and say in one sentence when the two do not fit."""

import importlib
import inspect
import os
import sys
from copy import deepcopy
from types import ModuleType

import torch
from torch import Tensor, nn

from salf.errors import SalfError, unknown
from salf.models.paper import PAPER_MODELS, Shape


def build(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """A paper's model by name, or `package.module:Name`, with weights drawn from the seed.

    A class or function of your own is called with the keywords `shape` (of one sample) and
    `classes` if it takes them, else without arguments.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ":" in name:
            return _own(name, shape, classes)
        if name not in PAPER_MODELS:
            raise unknown("model", name, [*PAPER_MODELS, "package.module:Name"])
        return PAPER_MODELS[name](shape, classes)


def _own(path: str, shape: Shape, classes: int) -> nn.Module:
    module_name, _, attribute = path.partition(":")
    # Like `python -m`: a file in the current folder can be named.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever somebody else's module raises
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{error.name}."
        )
        where = " in the current folder or on the Python path" if missing else ""
        raise SalfError(f"cannot import the model {path!r}: {_first_line(error)}{where}.") from None
    if not hasattr(module, attribute):
        raise unknown(f"model of {module_name}", attribute, _makers(module) or ["none"])
    factory = getattr(module, attribute)
    if isinstance(factory, nn.Module):
        return deepcopy(factory)  # every run starts from its weights
    try:
        takes = inspect.signature(factory).parameters
        offered = {"shape": shape, "classes": classes}
        model = factory(**{key: value for key, value in offered.items() if key in takes})
    except Exception as error:  # whatever somebody else's constructor raises
        raise SalfError(f"cannot make the model {path!r}: {_first_line(error)}.") from error
    if not isinstance(model, nn.Module):
        raise SalfError(f"{path!r} made a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _makers(module: ModuleType) -> list[str]:
    """The names in a module that may make a model: what it defines itself, and ready models."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, nn.Module)
        or (callable(value) and getattr(value, "__module__", "") == module.__name__)
    ]


def check_fit(model: nn.Module, inputs: Tensor, classes: int, name: str) -> None:
    """Try forward passes, so that a misfit is a sentence and not a traceback later.

    In training mode too, on a whole batch: batch norm refuses a single row only there.
    """
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}
    was_training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.train()
            model(inputs)
            model.eval()
            outputs = model(inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise SalfError(
            f"the model {name!r} does not fit a batch of shape "
            f"{'x'.join(map(str, inputs.shape))}: {_first_line(error)}."
        ) from None
    finally:
        model.train(was_training)
        for key, buffer in model.named_buffers():
            buffer.copy_(buffers[key])
    if not isinstance(outputs, Tensor) or outputs.shape[0] != len(inputs):
        raise SalfError(f"the model {name!r} must return one tensor with one row per sample.")
    if classes and (outputs.dim() < 2 or outputs.shape[1] < classes):
        raise SalfError(
            f"the model {name!r} gives outputs of shape {tuple(outputs.shape[1:])}, "
            f"and the data have {classes} classes."
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
