"""Your own model, data, loss and method, from Python: one run, with a folder or without.

Objects in place of settings are kept by a digest, so that only their own run continues.
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_model
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.layers import Prefixes
from salf.data import DataSet, Partitioned, UsersData, from_tensors, of_users, some
from salf.data.samples import OWN
from salf.engines import Loss, cross_entropy
from salf.methods import Method
from salf.problem import Metric, Problem
from salf.runs.config import Config
from salf.runs.federation import Given, place_of
from salf.runs.folder import MODEL
from salf.runs.run import run
from salf.runs.settings import refuse_deadline, refuse_with_fleet
from salf.runs.training import History, OnRound, watched
from salf.worlds.base import World
from salf.worlds.depth import DepthDistribution
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.devices import Fleet

TrainData = DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any]
# What may be given in place of a name, and an example of it.
_KINDS: Mapping[str, tuple[Any, str]] = {
    "method": (Method, "salf.method('drop')"),
    "depth": (DepthDistribution | World, "salf.worlds.depth.Uniform(users, layers)"),
    "fleet": (Fleet, "salf.Fleet('phones', users=30)"),
}


def train(
    model: nn.Module | Problem,
    data: TrainData | None = None,
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
    test data. A `salf.Problem` takes the place of model, data, layers, loss and metrics.

    `layers` names the layers from input to output, if the default is not what you want. `depth` is
    a rule (`mixture`, `uniform`, ...), a distribution or a world of `salf.worlds`.
    `loss(outputs, targets)` returns one value per row, or a single value; a loss of the second kind
    is applied to each user's rows separately. `metrics` maps names to functions of outputs and
    targets, which are evaluated on held-out data along with the loss and, for classes, the
    accuracy: see `row.metrics`, `history.curve_of(name)` and `history.test`. `on_round(row, model)`
    is called after each round and may raise `salf.StopTraining`. Data are moved to the model's
    device, and the model before that if there is `device=`; floating-point data are converted to
    the type of the model's parameters.

    With `out`, the run is saved in that folder, as by `salf run`. With `resume`, it continues the
    run in that folder if it has the same settings, data, method and loss. Ctrl-C ends a run after
    its round: the history has the rounds so far, and `stopped` set. `settings` are those of
    `salf.Config`: users, stragglers, rounds, momentum, batch_size, local_steps, client_lr, server,
    seed, eval_every, ...; `lr` may also be a function of the round (1, 2, ...).
    """
    settings |= {"method": method, "split": split, "layers": layers, "depth": depth}
    settings |= {"fleet": fleet, "loss": loss, "metrics": metrics}
    config, given = federation(Config(), settings, model, data, test, kept=out is not None)
    if config.deadline is not None:
        refuse_deadline(given.method or config.make_method())
    with watched("training", config.rounds, config.seconds, on_round) as shown:
        history = run(
            config, out, resume=resume, on_round=shown, given=given, keep_interrupted=True
        ).history
    if out is not None:  # a finished run is read from its folder
        load_model(model.model if isinstance(model, Problem) else model, str(Path(out) / MODEL))
    return history


def federation(
    base: Config,
    settings: Mapping[str, Any],
    model: nn.Module | Problem | None = None,
    data: TrainData | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    kept: bool = False,
) -> tuple[Config, Given]:
    """The config with settings of which some are objects, and these; see `salf.train`.

    A model or data not given are those that the config names. If the run is `kept` in a folder,
    the config has a digest of each object.
    """
    named: dict[str, Any] = dict(settings)
    of_users: Any = data
    loss, metrics = named.pop("loss", cross_entropy), named.pop("metrics", None)
    if isinstance(model, Problem):
        own = {"data": data, "test": test, "layers": named.get("layers"), "metrics": metrics}
        own["split"] = None if named.get("split", "iid") == "iid" else named["split"]
        own |= {"loss": None if loss is cross_entropy else loss, "device": named.get("device")}
        if twice := [name for name, value in own.items() if value is not None]:
            raise SalfError(f"a problem has its own {twice[0]}: leave out {twice[0]}=.")
        given = Given(_completed(model), users=model.users, tested=model.test is not None)
        named["data"], of_users, model = model.source or OWN, model.users, model.model
    elif data is not None:
        found, users = _data_of(data, test, named)
        tested, named["data"] = isinstance(data, DataSet) or test is not None, found.name
        given = Given(None, model, found, users, tested=tested, loss=loss, metrics=metrics or {})
    elif model is not None and "data" not in named:
        raise SalfError("a model of your own needs data: pass data=(inputs, labels).")
    else:
        given = Given(None, model, loss=loss, metrics=metrics or {})
    if isinstance(model, nn.Module) and base.device == "cpu":  # a given model stays where it is
        named.setdefault("device", str(place_of(model)[0]))
    objects = _taken_from(named)
    prints = {} if model is None else {"model": type(model).__qualname__}
    if given.users is not None:
        named |= {"split": "own", "users": len(given.users)}
    elif (indices := objects.get("split")) is not None:
        if named.setdefault("users", len(indices)) != len(indices):
            raise SalfError(
                f"the split is for {len(indices)} users, but users is {named['users']}."
            )
        named["split"] = "given"
    if (fleet := objects.get("fleet")) is not None:
        if "availability" in named and not fleet.availability.always:
            raise SalfError(
                "the fleet given has an availability of its own: leave out availability=."
            )
        named = {"users": len(fleet), **named, "fleet": fleets.GIVEN}
        prints["fleet"] = fingerprint(fleet)
    if kept:
        everything = {**settings, "data": of_users, "test": test}
        prints |= {n: fingerprint(each) for n, each in everything.items() if _counts(n, each)}
    named["threads"] = named.get("threads") or base.threads or torch.get_num_threads()
    config = base.changed(**named, given=prints)
    apart = config.split in ("own", "given")
    if apart and settings.get("validation"):
        raise SalfError(
            "validation data cannot be held out from a split by indices or from users' own data: "
            "leave samples out and pass them as test=."
        )
    if apart and settings.get("eval_every") and not given.tested:
        raise SalfError(
            "with a split given by indices, or with users' own data, eval_every needs test= to "
            "evaluate on."
        )
    if (method := objects.get("method")) is not None:
        average = getattr(method, "average", "reached")
        if config.average not in ("reached", average):
            raise SalfError(f"the method given has average={average!r}; set it there.")
    return config, replace(given, world=objects.pop("depth", None), **objects)


def _taken_from(settings: dict[str, Any]) -> dict[str, Any]:
    """The objects among these settings, which then are names and numbers alone."""
    for name, (kinds, example) in _KINDS.items():
        value = settings.get(name, "")
        if not isinstance(value, str | kinds):  # such as a class
            what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise SalfError(f"{name}= takes a name or an object such as {example}, not {what}.")
    if settings.get("fleet"):
        usual = settings.get("depth") == "mixture"
        refuse_with_fleet([name for name in settings if name != "depth" or not usual])
    named = ("method", "split", "layers", "depth", "fleet", "lr")
    found = {name: settings.pop(name) for name in named if _is_object(settings.get(name, ""))}
    return {name: value for name, value in found.items() if value is not None}


def _is_object(value: object) -> bool:
    return not isinstance(value, str | int | float)


def _completed(problem: Problem) -> Problem:
    """The problem with an example of its data, and with data to measure the curve on."""
    example = problem.example
    if example is None:
        example, _ = some(problem.users_data, 8).rows()
    return replace(problem, example=example, validation=problem.validation or problem.test)


def _data_of(data: Any, test: Any, settings: Mapping[str, Any]) -> tuple[DataSet, UsersData | None]:
    """The data set, and what each user has if that is known.

    The data set of users with data of their own is an example of what they have.
    """
    if isinstance(data, DataSet):
        if test is not None:
            raise SalfError("a data set has its own test data: leave out test=.")
        return data, None
    if (users := of_users(data, settings.get("users"))) is not None:
        split = settings.get("split", "iid")
        if not isinstance(split, str) or split != "iid":
            raise SalfError("split= does not apply to users' own data: leave it out.")
        seen = users.samples if isinstance(users, Partitioned) else some(users, 64)
        data = (seen.inputs, seen.labels)
    return from_tensors(data, data if test is None else test), users


def _counts(name: str, value: Any) -> bool:
    """Whether another object of this name makes another run."""
    return (
        name not in ("metrics", "options")  # which change nothing, and which are settings
        and _is_object(value)
        and value is not None
        and value is not cross_entropy
    )


def fingerprint(value: Any) -> str:
    """Equal for equal objects, in this process and the next."""
    digest = hashlib.sha256()
    with suppress(Exception):  # of a class inside a function, say: the name must do
        _Contents(SimpleNamespace(write=digest.update)).dump(value)
    name = value.name if isinstance(value, Fleet) else ""
    name = name or getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {digest.hexdigest()[:16]}"


class _Contents(pickle.Pickler):
    """Pickles what an object is made of: of data the numbers, of functions the instructions."""

    fast = True  # no memory of what was seen: equal objects need not share their parts

    def reducer_override(self, value: Any) -> Any:
        content: Any
        match value:
            case Tensor():
                content = value.detach().cpu().numpy()
            case FunctionType():  # of which a pickle would have the name only
                content = value.__code__
            case CodeType():
                content = value.co_code, value.co_names, value.co_consts
            case _:
                return NotImplemented
        return tuple, ([content],)
