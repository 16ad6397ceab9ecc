"""`salf layers`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from salf.cli.options import settings_of
from salf.cli.terminal import results, tell
from salf.runs.config import Config
from salf.runs.presets import PRESETS
from salf.runs.settings import PAPER_MODELS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from salf.core.layers import Layer, Layers

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{' | '.join(PAPER_MODELS)} | package.module:Name")
]


@settings_of(Config, only=("data", "layers", "batch_size"))
def layers(settings: dict[str, Any], model: ModelName) -> None:
    """Show the layers of a model, from the input to the output, with their work and size.

    A layer is a block: a convolution with its norm, a residual block, a transformer block. Work is
    counted in multiply-adds per sample: matrix products, convolutions and attention. The input has
    the shape of --data, by default that of the model's preset.

    Examples:

        salf layers cnn --data mnist

        salf layers mynets:Net --data digits --layers stem+norm,body,head
    """
    from salf.worlds.fleet.cost import Cost
    from salf.worlds.fleet.named import PHONE

    config, network, found, example, _ = named_model(model, settings)
    cost = Cost.of(network, found, example)
    fixed, row = PHONE.seconds(cost)
    seconds = (fixed + len(example) * row).sum(axis=0)
    sizes = {n: p.numel() for n, p in network.named_parameters() if not p.requires_grad}
    frozen = [sum(sizes[name] for name in layer.frozen) for layer in found]
    columns: dict[str, Sequence[float]] = {
        "parameters": [layer.size for layer in found],
        **({"frozen": frozen} if sizes else {}),
        "bytes sent": cost.bytes.tolist(),
        "forward": cost.forward.tolist(),
        "backward": cost.backward.tolist(),
    }
    totals = {name: sum(column) for name, column in columns.items()} | (
        {"frozen": sum(sizes.values())} if sizes else {}
    )
    table = Table(
        title=f"{model} on {config.data}: {len(found)} layers, from the input to the output",
        title_justify="left",
        show_footer=True,
    )
    table.add_column("layer", "total", justify="right")
    table.add_column("name", overflow="fold")
    table.add_column("modules", overflow="fold")
    for name, total in totals.items():
        table.add_column(name, f"{total:,.0f}", justify="right")
    table.add_column("ms on a phone", f"{1e3 * seconds.sum():.3g}", justify="right")
    for index, layer in enumerate(found):
        table.add_row(
            str(index + 1),
            layer.name,
            _modules(network, layer),
            *(f"{column[index]:,.0f}" for column in columns.values()),
            f"{1e3 * seconds[index]:.3g}",
        )
    results.print(table, markup=False)
    tell(
        f"Milliseconds are those of a batch of {len(example)} on the typical device of the fleet "
        "phones (docs/fleets.md)."
    )
    if sizes:
        tell(
            "Frozen parameters belong to no layer: they are not sent, and cost work in the forward "
            "pass only. The total has those of modules that are frozen as a whole."
        )
    count = len(found)
    tell(
        f"A straggler of uniform depth reaches layer l with probability l/{count + 1}: layer 1 "
        f"with {1 / (count + 1):.0%}, layer {count} with {count / (count + 1):.0%}."
    )


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


def _modules(network: "nn.Module", layer: "Layer") -> str:
    """The kinds of modules that own a layer's parameters, with how many there are of each."""
    owners = dict.fromkeys(name.rpartition(".")[0] for name in layer.parameters)
    kinds = Counter(
        type(network.get_submodule(owner)).__name__ if owner else "Parameter" for owner in owners
    )
    return ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
