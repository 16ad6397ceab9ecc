"""`salf methods`, `layers`, `data` and `bound`: what is told without training."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from salf.cli.options import GivenSettings, option, settings_of
from salf.cli.terminal import answer, console, say
from salf.common.registry import LIMITS
from salf.methods import METHODS, asks, find
from salf.runs.config import Config
from salf.runs.presets import PRESETS
from salf.runs.settings import PAPER_MODELS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from salf.core.layers import Layers

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{' | '.join(PAPER_MODELS)} | package.module:Name")
]


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A method, or package.module:Name.")
    ] = None,
) -> None:
    """Show the methods, or one of them: its rule, options, defaults and source."""
    found = [_method(each) for each in ([name] if name else METHODS)]
    shown = []
    for each in found:
        options = [f"  --option {key}={value}" for key, value in each["options"].items()]
        ends = [f"  runs {each['runs']}", *options, f"  {each['file']}"] if name else options
        shown += [f"{each['name']:12} {each['about']}", *[each["rule"]] * bool(name), *ends]
    answer(found[0] if name else found, *shown)


def _method(name: str) -> dict[str, Any]:
    """A method as it is shown; an option is its default, and then its type and limits."""
    cls, wants = find(name), asks(name)
    module, options = sys.modules[cls.__module__], {}
    for each in fields(cls):
        choices = " | ".join(map(str, get_args(each.type))) * (get_origin(each.type) is Literal)
        kind = choices or getattr(each.type, "__name__", str(each.type))
        limits = (f", {LIMITS[limit][1]} {value}" for limit, value in each.metadata.items())
        options[each.name] = f"{each.default} ({kind}{''.join(limits)})"
    options.pop("average", None)  # which is a setting
    runs = "on a fleet only" if wants.clock else "simulated only" * bool(wants.simulated_only)
    return {
        "name": name,
        "about": (module.__doc__ or "").partition("\n")[0],
        "rule": inspect.cleandoc(cls.__doc__ or ""),
        "runs": runs or "simulated and live",
        "options": options,
        "file": inspect.getsourcefile(cls),
    }


@settings_of(Config, only=("data", "layers", "batch_size"))
def layers(settings: dict[str, Any], model: ModelName) -> None:
    """Show the layers of a model, from the input to the output, with their work and size.

    A layer is a block: a convolution with its norm, a residual block, a transformer block. Work is
    counted in multiply-adds per sample: matrix products, convolutions and attention. The input has
    the shape of --data, by default that of the model's preset.

    Examples:

        salf layers mynets:Net --data digits --layers stem+norm,body,head
    """
    from salf.report.tables import Table
    from salf.worlds.fleet.cost import Cost
    from salf.worlds.fleet.named import PHONE

    config, network, found, example, _ = named_model(model, settings)
    cost = Cost.of(network, found, example)
    fixed, row = PHONE.seconds(cost)
    milliseconds = 1e3 * (fixed + len(example) * row).sum(axis=0)
    sizes = {n: p.numel() for n, p in network.named_parameters() if not p.requires_grad}
    kinds = {name: type(module).__name__ for name, module in network.named_modules()}
    about: list[dict[str, Any]] = [
        {
            "layer": index + 1,
            "name": layer.name,
            "module": kinds.get(layer.name.partition(" ")[0], ""),
            "parameters": layer.size,
            **({"frozen": sum(sizes[name] for name in layer.frozen)} if sizes else {}),
            "bytes sent": int(cost.bytes[index]),
            "forward": int(cost.forward[index]),
            "backward": int(cost.backward[index]),
            "ms on a phone": float(milliseconds[index]),
        }
        for index, layer in enumerate(found)
    ]
    summed = [name for name in about[0] if name not in ("layer", "name", "module")]
    total = {"layer": "total", **{name: sum(each[name] for each in about) for name in summed}}
    total |= {"frozen": sum(sizes.values())} if sizes else {}
    table = Table.of([{name: _cell(each[name]) for name in each} for each in [*about, total]])
    count = len(found)
    told: list[str | Table] = [
        f"{model} on {config.data}: {count} layers, from the input to the output",
        table,
        f"Milliseconds are those of a batch of {len(example)} on the typical device of the fleet "
        "phones (docs/fleets.md).",
        f"A straggler of uniform depth reaches layer l with probability l/{count + 1}: layer 1 "
        f"with {1 / (count + 1):.0%}, layer {count} with {count / (count + 1):.0%}.",
    ]
    if sizes:
        told.append(
            "Frozen parameters belong to no layer: they are not sent, and cost work in the forward "
            "pass only. The total has those of modules that are frozen as a whole."
        )
    answer(about, *told)


def _cell(value: Any, digits: int = 3) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def named_model(
    name: str, settings: Mapping[str, Any], rows: int | None = None
) -> "tuple[Config, nn.Module, Layers, Tensor, int]":
    """A model by name with its layers, a batch of inputs and the number of classes."""
    from salf.core.layers import Layers
    from salf.data import example as example_of
    from salf.models import build, check_fit

    presets = (preset.data for preset in PRESETS.values() if preset.model == name)
    config = Config(**{"data": next(presets, Config.data), **settings, "model": name})
    example, classes = example_of(config.data, rows or config.batch_size)
    network = build(name, tuple(example.shape[1:]), classes, config.seed)
    check_fit(network, example, classes, name)
    return config, network, Layers.of(network, config.given_layers(), example), example, classes


@settings_of(Config, only=("data_dir",))
def data(
    settings: GivenSettings,
    name: Annotated[str, typer.Argument(help="mnist | fashion-mnist | cifar10 | digits | ...")],
) -> None:
    """Download a data set into the cache, verify it, and print its size and source."""
    from salf.data import load

    folder = settings.get("data_dir")
    with console.status(f"looking for {name}"):
        found = load(name, Path(folder) if folder else None, report=say)
    about = {
        "name": found.name,
        "training": len(found.train),
        "test": len(found.test),
        "shape": [*found.train.shape],
        "classes": found.classes,
        "source": found.source,
    }
    answer(
        about,
        f"{found.name}: {len(found.train):,} training and {len(found.test):,} test samples of "
        f"shape {'x'.join(map(str, found.train.shape))}, {found.classes} classes ({found.source})",
    )


def bound(
    users: Annotated[int, option("--users", help="U, the number of users (30).")] = 30,
    layers: Annotated[int, option("--layers", help="L, the number of layers (3).")] = 3,
    t: Annotated[int, option("--round", help="t, the round (250).")] = 250,
    rho_c: Annotated[float, option("--rho-c", help="Strong convexity, AS1 (1).")] = 1.0,
    rho_s: Annotated[float, option("--rho-s", help="Smoothness, AS1 (1).")] = 1.0,
    sigma2: Annotated[
        float, option("--sigma2", help="Variance of stochastic gradients, AS2 (1).")
    ] = 1.0,
    g2: Annotated[float, option("--g2", help="G^2, squared norm of gradients, AS3 (1).")] = 1.0,
    gap: Annotated[float, option("--gap", help="Gamma, the heterogeneity gap (0).")] = 0.0,
    distance2: Annotated[float, option("--distance2", help="|w_1 - w_opt|^2 (1).")] = 1.0,
) -> None:
    """Print the theorem's constants and bounds.

    B is the part of the bound that FedAvg has too; C is what the deadline adds. Bounds are worst
    cases: measured gaps are far smaller.
    """
    from salf.core.server import theorem_rate
    from salf.report.tables import Table
    from salf.theory import Constants, Federation, convergence_bound, variance_bound

    constants = Constants(rho_c, rho_s, [sigma2], g2, gap)
    federation = Federation(users, layers)
    with_deadline, without = (
        convergence_bound(federation, constants, t, distance2, deadline=deadline)
        for deadline in (True, False)
    )
    found = {
        "B": constants.B(federation),
        "C": constants.C(federation),
        "variance of the step": variance_bound(federation, theorem_rate(rho_c, rho_s)(t), g2),
        "gap of SALF": with_deadline,
        "gap of FedAvg": without,
    }
    shown = {name: _cell(value, 4) for name, value in found.items()}
    answer(found, Table.of([shown], f"Bounds for {users:,} users, {layers:,} layers, round {t:,}"))
