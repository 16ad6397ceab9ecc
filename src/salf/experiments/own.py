"""Your own model, data, loss and method, from Python: one run, with a folder or without."""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model
from torch import Tensor, nn

from salf.data import DataSet
from salf.depth import DepthDistribution
from salf.engines import Loss, cross_entropy
from salf.evaluation import Metric
from salf.experiments.config import refuse_deadline
from salf.experiments.folder import MODEL
from salf.experiments.run import Result, run_made
from salf.experiments.training import History, OnRound, own_federation
from salf.fleet.devices import Fleet
from salf.inputs import Inputs
from salf.layers import Prefixes
from salf.methods import Method
from salf.methods import method as make_method
from salf.worlds import World


def train(
    model: nn.Module,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any],
    test: tuple[Any, Any] | None = None,
    *,
    method: str | Method = "salf",
    split: str | Sequence[Sequence[int]] = "iid",
    layers: str | Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution | World = "mixture",
    fleet: str | Fleet = "",
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    on_round: OnRound | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    **settings: Any,
) -> History:
    """Train your own model, in place, on your own tensors, with a method of your choice.

    `data` is a data set, or a pair (inputs, labels) with `test` likewise. `split` divides it among
    the users: a rule (`iid`, `dirichlet:0.1`, `shards:2`) or each user's indices. `data` may also
    be the users' own data: a list with an (inputs, labels) tuple or a `torch.utils.data.Dataset`
    per user, or a function that returns one of these for user 0, 1, ... (with `users=`). With
    indices or users' own data, no validation data are held out, and the curve is measured on the
    test data.

    `layers` names the layers from input to output, if the default is not what you want. `depth` is
    a rule (`mixture`, `uniform`, ...), a distribution of `salf.depth` or a world of `salf.worlds`.
    `loss(outputs, targets)` returns one value per row, or a single value; a loss of the second kind
    is applied to each user's rows separately. `metrics` maps names to functions of outputs and
    targets, which are evaluated on held-out data along with the loss and, for classes, the
    accuracy: see `row.metrics`, `history.curve_of(name)` and `history.test`. `on_round(row, model)`
    is called after each round and may raise `salf.StopTraining`. Floating-point data are converted
    to the type of the model's parameters.

    With `out`, the run is saved in that folder, as by `salf run`. With `resume`, it continues the
    run in that folder if it has the same settings, data, method and loss. `settings` are those of
    `salf.Config`: users, stragglers, rounds, momentum, batch_size, local_steps, client_lr, server,
    seed, eval_every, ...; `lr` may also be a function of the round (1, 2, ...).
    """
    if settings.get("deadline") is not None and isinstance(method, str | Method):
        options = settings.get("options", {})
        refuse_deadline(make_method(method, **options) if isinstance(method, str) else method)
    parts = {
        "data": data,
        "test": test,
        "method": method,
        "split": split,
        "layers": layers,
        "depth": depth,
        "fleet": fleet,
        "loss": loss,
        "metrics": metrics,
    }
    return run_own(model, parts, settings, out, resume=resume, on_round=on_round).history


def run_own(
    model: nn.Module,
    parts: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> Result:
    """One run of a federation of Python objects; the model is left as trained."""
    config, make = own_federation(model, **parts, **settings)
    given = {"model": type(model).__qualname__}
    if out is not None:
        lr = settings.get("lr")
        given |= fingerprints({**parts, "lr": lr if callable(lr) else None})
    config = config.changed(threads=config.threads or torch.get_num_threads(), given=given)
    result = run_made(config, make, out, resume, on_round=on_round)
    if out is not None:  # a finished run is read from its folder
        load_model(model, str(Path(out) / MODEL))
    return result


def fingerprints(parts: Mapping[str, Any]) -> dict[str, str]:
    """What identifies each object that a setting cannot name, so that no other run continues."""
    return {
        name: fingerprint(value)
        for name, value in parts.items()
        if name != "metrics"  # which change nothing
        and value is not None
        and value is not cross_entropy
        and not isinstance(value, str)
    }


def fingerprint(value: Any) -> str:
    """Equal for equal objects, in this process and the next."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {digest.hexdigest()[:16]}"


def _parts(value: Any) -> Iterator[bytes]:
    """The contents of an object, piece by piece."""
    if isinstance(value, DataSet):
        value = (value.train.inputs, value.train.labels, value.test.inputs, value.test.labels)
    if isinstance(value, Inputs):
        value = value.parts
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value and not np.isscalar(value[0]):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, Tensor | np.ndarray | tuple | list):
        array = np.ascontiguousarray(value.cpu() if isinstance(value, Tensor) else value)
        yield f"{array.dtype} {array.shape}".encode()
        yield array.tobytes()
    elif isinstance(value, FunctionType):  # a pickle would have its name only
        yield from _code(value.__code__)
    else:
        with suppress(Exception):  # of a class inside a function, say: the name must do
            yield pickle.dumps(value)


def _code(code: CodeType) -> Iterator[bytes]:
    """What a function does, as far as it is in the function itself."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()
