"""Your own model, data, loss and method, from Python: one run, with a folder or without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from salf.common.errors import SalfError
from salf.core.layers import Prefixes
from salf.core.server import Schedule
from salf.data import DataSet, Partitioned, UsersData, from_tensors, of_users, some
from salf.engines import Loss, cross_entropy
from salf.methods import Method
from salf.methods import method as make_method
from salf.problem import Metric, Problem
from salf.runs.config import Config
from salf.runs.federation import Given, Parts, make_problem, training_of
from salf.runs.fingerprint import fingerprint, fingerprints
from salf.runs.folder import MODEL
from salf.runs.run import How, Result, run_made
from salf.runs.settings import check_names, refuse_deadline
from salf.runs.training import History, OnRound, Training
from salf.runs.watched import watched
from salf.worlds.base import World
from salf.worlds.depth import DepthDistribution
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.devices import Fleet

# What may be given in place of a name, and an example of it.
_KINDS = {
    "method": (Method, "salf.method('drop')"),
    "depth": (DepthDistribution | World, "salf.worlds.depth.Uniform(users, layers)"),
    "fleet": (Fleet, "salf.Fleet('phones', users=30)"),
}


def train(
    model: nn.Module | Problem,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any] | None = None,
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
    is called after each round and may raise `salf.StopTraining`. Floating-point data are converted
    to the type of the model's parameters.

    With `out`, the run is saved in that folder, as by `salf run`. With `resume`, it continues the
    run in that folder if it has the same settings, data, method and loss. Ctrl-C ends a run after
    its round: the history has the rounds so far, and `stopped` set. `settings` are those of
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
    seconds = settings.get("seconds")
    rounds = settings.get("rounds", 0 if seconds else Config.rounds)
    with watched("training", rounds, seconds, on_round) as shown:
        how = How(on_round=shown, keep_interrupted=True)
        return run_own(model, parts, settings, out, resume, how).history


def run_own(
    model: nn.Module | Problem,
    parts: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path | str | None = None,
    resume: bool = False,
    how: How | None = None,
) -> Result:
    """One run of a federation of Python objects; the model is left as trained."""
    config, made, objects = own_federation(model, **parts, **settings)
    given = dict(config.given)
    if out is not None:
        lr = settings.get("lr")
        own = {"data": model.users} if isinstance(model, Problem) else {}
        given |= fingerprints({**parts, **own, "lr": lr if callable(lr) else None})
    config = config.changed(threads=config.threads or torch.get_num_threads(), given=given)

    def make(config: Config) -> Training:
        problem = made if isinstance(made, Problem) else make_problem(config, made)
        return training_of(config, problem, objects)

    result = run_made(config, make, out, resume, how or How())
    if out is not None:  # a finished run is read from its folder
        trained = model.model if isinstance(model, Problem) else model
        load_model(trained, str(Path(out) / MODEL))
    return result


def own_federation(
    model: nn.Module | Problem,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any] | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    method: str | Method = "salf",
    split: str | Sequence[Sequence[int]] = "iid",
    layers: str | Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution | World = "mixture",
    fleet: str | Fleet = "",
    lr: float | str | Schedule | None = None,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> tuple[Config, Parts | Problem, Given]:
    """The config of a federation of Python objects, and these objects; see `salf.train`."""
    problem: Problem | None = None
    users_data: UsersData | None
    if isinstance(model, Problem):
        own: dict[str, Any] = {"data": data, "test": test, "layers": layers, "metrics": metrics}
        own["split"] = None if split == "iid" else split
        own["loss"] = None if loss is cross_entropy else loss
        if twice := [name for name, value in own.items() if value is not None]:
            raise SalfError(f"a problem has its own {twice[0]}: leave out {twice[0]}=.")
        problem = _completed(model)
        name, users_data, tested = model.source or "own data", model.users, model.test is not None
        model = model.model
    else:
        made, users_data, tested = _of_data(data, test, split, settings.get("users"))
        name = made.name
    if users_data is not None:
        settings["users"] = len(users_data)
    _check_kinds(method=method, depth=depth, fleet=fleet)
    if fleet and (not isinstance(depth, str) or depth != "mixture" or "stragglers" in settings):
        raise SalfError(
            "the fleet and the deadline determine how far users get: leave out depth= and "
            "stragglers=."
        )
    texts = {"method": method, "split": split, "depth": depth, "layers": layers, "fleet": fleet}
    named: dict[str, Any] = {n: value for n, value in texts.items() if isinstance(value, str)}
    named |= {"data": name, "given": {"model": type(model).__qualname__}}
    if lr is not None and not callable(lr):
        named["lr"] = lr
    if users_data is not None:
        named["split"] = "own"
    indices = None if isinstance(split, str) else split
    if indices is not None:
        named |= {"split": "given", "users": len(indices)}
    if isinstance(fleet, Fleet):
        if "availability" in settings and not fleet.devices.availability.always:
            raise SalfError(
                "the fleet given has an availability of its own: leave out availability=."
            )
        named |= {"fleet": fleets.GIVEN, "users": len(fleet)}
        named["given"]["fleet"] = fingerprint(fleet)
    named |= settings
    check_names(named, Config)
    config = Config(**named)
    if indices is not None and config.users != len(indices):
        raise SalfError(f"the split is for {len(indices)} users, but users is {config.users}.")
    if indices is not None or users_data is not None:
        _check_evaluation(settings, tested)
    if isinstance(method, Method):
        if config.average not in ("reached", method.average):
            raise SalfError(f"the method given has average={method.average!r}; set it there.")
        config.check_reach(method)
    given = Given(
        method if isinstance(method, Method) else None,
        None if isinstance(depth, str) else depth,
        None if isinstance(fleet, str) else fleet,
        lr if callable(lr) else None,
    )
    if problem is not None:
        return config, problem, given
    parts = Parts(
        model,
        type(model).__name__,
        made,
        users_data,
        indices,
        None if isinstance(layers, str) else layers,
        loss,
        metrics or {},
        tested,
    )
    return config, parts, given


def _completed(problem: Problem) -> Problem:
    """The problem with an example of its data, and with data to measure the curve on."""
    example = problem.example
    if example is None:
        example, _ = some(problem.users_data, 8).rows()
    return replace(problem, example=example, validation=problem.validation or problem.test)


def _of_data(
    data: Any, test: tuple[Any, Any] | None, split: Any, users: int | None
) -> tuple[DataSet, UsersData | None, bool]:
    """The data set, what each user has if that is known, and whether there are test data.

    The data set of users with data of their own is an example of what they have.
    """
    if isinstance(data, DataSet):
        if test is not None:
            raise SalfError("a data set has its own test data: leave out test=.")
        return data, None, True
    if (users_data := of_users(data, users)) is not None:
        if not isinstance(split, str) or split != "iid":
            raise SalfError("split= does not apply to users' own data: leave it out.")
        seen = users_data.samples if isinstance(users_data, Partitioned) else some(users_data, 64)
        data = (seen.inputs, seen.labels)
    return from_tensors(data, data if test is None else test), users_data, test is not None


def _check_kinds(**objects: object) -> None:
    """Refuse what is neither a name nor an object of the right kind, such as a class."""
    for name, value in objects.items():
        kinds, example = _KINDS[name]
        if not isinstance(value, str | kinds):
            what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise SalfError(f"{name}= takes a name or an object such as {example}, not {what}.")


def _check_evaluation(settings: Mapping[str, Any], tested: bool) -> None:
    if settings.get("validation"):
        raise SalfError(
            "validation data cannot be held out from a split by indices or from users' own data: "
            "leave samples out and pass them as test=."
        )
    if settings.get("eval_every") and not tested:
        raise SalfError(
            "with a split given by indices, or with users' own data, eval_every needs test= to "
            "evaluate on."
        )
