"""A module seen as L ordered layers, parameters and buffers together.

Layer 1 is nearest the input and layer L is the output, as in [global_layers]. A depth d means that
layers d..L were reached; d = L + 1 means none was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

import torch
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.graph import BackwardGraph, unchanged

# What may stand for one layer when layers are given by hand: a name or prefix, or several of them.
Prefixes = str | Sequence[str]

NORMALISATION = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Layer:
    """One layer: the names of the parameters and buffers that are sent and averaged together."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    size: int = 0  # the number of values in its parameters


class Layers(Sequence[Layer]):
    """The ordered layers of one module. `layers[0]` is layer 1: messages and docs count from 1."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        if not layers:
            raise SalfError("the model has no parameters, so there is no layer to train.")
        self._layers = tuple(layers)
        self.index_of: Mapping[str, int] = {
            name: index
            for index, layer in enumerate(self._layers)
            for name in (*layer.parameters, *layer.buffers)
        }

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence's overloads
        return self._layers[index]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def __repr__(self) -> str:
        return f"Layers({', '.join(f'{n}: {x.name}' for n, x in enumerate(self, 1))})"

    def __str__(self) -> str:
        """A table: number, name, size, and names of the parameters."""
        names = max(len(layer.name) for layer in self)
        sizes = max(len(f"{layer.size:,}") for layer in self)
        lines = [f"{len(self)} layers, from the input to the output:"]
        for number, layer in enumerate(self, 1):
            owned = shorten(", ".join(layer.parameters), 60, placeholder=" ...")
            lines.append(f"{number:4}  {layer.name:{names}}  {layer.size:{sizes},}  {owned}")
        return "\n".join(lines)

    def reached(self, depth: int) -> tuple[Layer, ...]:
        """The layers a user of this depth has gradients of: d..L, from [ltUsers]."""
        if not 1 <= depth <= len(self) + 1:
            raise SalfError(f"depth {depth} is outside 1..{len(self) + 1} ({len(self)} layers).")
        return self._layers[depth - 1 :]

    @classmethod
    def of(
        cls,
        module: nn.Module,
        given: Sequence[Prefixes] | None = None,
        example: Tensor | None = None,
    ) -> "Layers":
        """Split `module` into layers, by `given` names or prefixes or by the default rules.

        The default for an `nn.Sequential`: one layer per child with parameters, nested
        Sequentials flattened, normalisation joined to the layer before it, any other composite
        child one layer. For any other module: one layer per leaf module with parameters, in the
        order the forward pass first uses them, which takes an `example` input. A module that owns
        parameters and has children too (attention, say) counts as one leaf.

        `given` layers must be in the order in which the forward pass first uses their parameters: a
        gradient is complete only when backpropagation has passed the first use. With an `example`,
        any other order is an error.
        """
        if given is not None:
            layers = _claim(module, _groups_by_prefix(module, given), example)
            if example is not None:
                _check_order(module, layers, example)
        elif is_sequential(module):
            layers = _claim(module, _groups_of_sequential(module), example)
        else:
            layers = _claim(module, _groups_in_order_of_use(module, example), example)
        return cls(layers)


def is_sent(tensor: Tensor, is_parameter: bool) -> bool:
    """Whether a layer's tensor is part of an update: what trains, and buffers that have a mean."""
    return tensor.requires_grad if is_parameter else tensor.dtype != torch.bool


def sent_bytes(model: nn.Module, layer: Layer) -> int:
    """The bytes of a layer's part of an update: its gradients and its buffers' differences."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    sent = [tensors[name] for name in layer.parameters if is_sent(tensors[name], True)]
    sent += [tensors[name] for name in layer.buffers if is_sent(tensors[name], False)]
    return sum(tensor.nbytes for tensor in sent)


def is_sequential(module: nn.Module) -> bool:
    """Whether the forward pass is that of `nn.Sequential` itself, not of a subclass's own."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


# A group of modules (or names) that will be one layer: its name, and what it claims.
_Group = tuple[str, list[str]]


def flatten(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The children of a Sequential with nested Sequentials opened, with their full names."""
    # Not named_children(), which hides the second use of a module that stands in two places.
    for name, child in module._modules.items():
        assert child is not None  # a Sequential has no empty places
        if is_sequential(child):
            yield from flatten(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _groups_of_sequential(module: nn.Module) -> list[_Group]:
    groups: list[_Group] = []
    front: list[str] = []  # without parameters, before the first layer: they go with it
    for name, child in flatten(module):
        owns_parameters = any(True for _ in child.parameters())
        joins = isinstance(child, NORMALISATION) or not owns_parameters
        if joins and groups:
            groups[-1][1].append(name)
        elif owns_parameters:
            groups.append((name, [*front, name]))
            front = []
        else:
            front.append(name)
    return groups


def _groups_in_order_of_use(module: nn.Module, example: Tensor | None) -> list[_Group]:
    if example is None:
        raise SalfError(
            f"{type(module).__name__} is not an nn.Sequential, so its layers are ordered by a "
            "forward pass: give an example input, or give the layers by name."
        )
    used: list[str] = []

    def note(name: str) -> None:
        # A module used twice has its gradient only when backpropagation reaches the first use.
        if name not in used:
            used.append(name)

    units = _units(module, "")
    handles = [
        unit.register_forward_pre_hook(lambda *_, name=name: note(name)) for name, unit in units
    ]
    try:
        with unchanged(module), torch.no_grad():
            module(example)
    finally:
        for handle in handles:
            handle.remove()
    by_name = dict(units)
    groups: list[_Group] = []
    front: list[str] = []
    for name in used:
        if any(True for _ in by_name[name].parameters()):
            groups.append((name, [*front, name]))
            front = []
        else:  # only buffers: they travel with the layer before them, or else with the first
            (groups[-1][1] if groups else front).append(name)
    return groups


def _units(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """Leaf modules, and modules that own parameters themselves with all that is below them."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        owns = any(True for _ in child.parameters(recurse=False))
        if owns or not any(True for _ in child.children()):
            found.append((f"{prefix}{name}", child))
        else:
            found.extend(_units(child, f"{prefix}{name}."))
    return found


def _groups_by_prefix(module: nn.Module, given: Sequence[Prefixes]) -> list[_Group]:
    groups: list[_Group] = []
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in module.named_buffers()]
    for entry in given:
        prefixes = [entry] if isinstance(entry, str) else list(entry)
        for prefix in prefixes:
            if not any(_under(name, prefix) for name in (*names, *buffers)):
                raise SalfError(
                    f"the layer {prefix!r} names no parameter. The parameters are: "
                    f"{', '.join(names)}."
                )
        groups.append((" + ".join(prefixes), prefixes))
    return groups


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _claim(module: nn.Module, groups: list[_Group], example: Tensor | None) -> list[Layer]:
    """Give every parameter to exactly one layer, or say which one is not in exactly one."""
    # A parameter shared by two modules has two names and one place: the layer used first,
    # because backpropagation completes its gradient only there.
    canonical = {id(p): name for name, p in module.named_parameters()}
    aliases: dict[str, list[str]] = {name: [] for name in canonical.values()}
    for alias, parameter in module.named_parameters(remove_duplicate=False):
        aliases[canonical[id(parameter)]].append(alias)

    def claimants(names: Sequence[str]) -> list[int]:
        return [
            index
            for index, (_, prefixes) in enumerate(groups)
            if any(_under(name, prefix) for name in names for prefix in prefixes)
        ]

    parameters: list[list[str]] = [[] for _ in groups]
    for name, names in aliases.items():
        owners = claimants(names)
        if not owners:
            raise SalfError(
                f"the parameter {name!r} belongs to no layer: no given name covers it, or the "
                "forward pass does not use it through a module of its own. Give the layers by name "
                f"so that each parameter is in one, such as {in_words(blocks(module, example))}."
            )
        if len(owners) > 1 and len(names) == 1:
            raise SalfError(
                f"the parameter {name!r} belongs to more than one layer: "
                f"{', '.join(groups[index][0] for index in owners)}."
            )
        parameters[owners[0]].append(name)

    buffers: list[list[str]] = [[] for _ in groups]
    for name, _ in module.named_buffers():
        if owners := claimants([name]):
            buffers[owners[0]].append(name)
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    return [
        Layer(group[0], tuple(owned), tuple(carried), sum(sizes[name] for name in owned))
        for group, owned, carried in zip(groups, parameters, buffers, strict=True)
        if owned
    ]


def _check_order(module: nn.Module, layers: Sequence[Layer], example: Tensor) -> None:
    graph = BackwardGraph.of(module, example)
    owned = [layer.parameters for layer in layers]
    if (wrong := graph.out_of_order(owned)) is None:
        return
    early, late = (layers[index].name for index in wrong)
    right = [_entry(layers[index].name.split(" + ")) for index in graph.ordered(owned)]
    raise SalfError(
        f"the layers are in the wrong order: backpropagation completes {early!r} before {late!r}, "
        f"so {early!r} must come later: use {in_words(right)}."
    )


def blocks(module: nn.Module, example: Tensor | None = None) -> list[Prefixes]:
    """The coarsest layers there are: what the module has at its top, normalisation joined.

    In the order of use if there is an `example`, else in the order of definition.
    """
    modules = dict(module.named_modules())
    names = _top_names(module)
    while len(names) == 1 and names[0] in modules and [*modules[names[0]].children()]:
        names = [f"{names[0]}.{name}" for name in _top_names(modules[names[0]])]
    layers = _claim(module, [(name, [name]) for name in names], example)
    if example is not None:
        graph = BackwardGraph.of(module, example)
        layers = [layers[k] for k in graph.ordered([layer.parameters for layer in layers])]
    joined: list[list[str]] = []
    for layer in layers:
        if joined and isinstance(modules.get(layer.name), NORMALISATION):
            joined[-1].append(layer.name)
        else:
            joined.append([layer.name])
    return [_entry(names) for names in joined]


def _entry(names: list[str]) -> Prefixes:
    return names[0] if len(names) == 1 else names


def _top_names(module: nn.Module) -> list[str]:
    """The parameters a module owns itself, then its children with parameters."""
    return list(dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters()))


def in_words(given: Sequence[Prefixes]) -> str:
    """How such layers are given in Python and on the command line."""
    return f"layers={json.dumps(given)} or --layers {as_option(given)}"


def as_option(given: Sequence[Prefixes]) -> str:
    """The inverse of `parse_layers`."""
    return ",".join(each if isinstance(each, str) else "+".join(each) for each in given)


def parse_layers(text: str) -> list[str | list[str]]:
    """Layers as people write them: `stem,body+norm,head`, `+` joining several into one."""
    entries = ([name.strip() for name in entry.split("+")] for entry in text.split(","))
    return [names if len(names) > 1 else names[0] for names in entries]
