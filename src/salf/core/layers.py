"""A module seen as L ordered layers, parameters and buffers together.

Layer 1 is nearest the input and layer L is the output, as in [global_layers]. A depth d means that
layers d..L were reached; d = L + 1 means none was.

By default a layer is a block as people name it: a convolution with its norm, a residual block, a
transformer block. Only what trains belongs to a layer: frozen parameters, and the buffers of
modules that are frozen, are computed with and stay as they are.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from textwrap import shorten

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from salf.common.errors import SalfError
from salf.core.inputs import Operations, unchanged

# What may stand for one layer when layers are given by hand: a name or prefix, or several of them.
Prefixes = str | Sequence[str]

_BATCH = nn.modules.batchnorm._NormBase
NORMALISATION = (_BATCH, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Layer:
    """One layer: the names of the parameters and buffers that are sent and averaged together."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    size: int = 0  # the number of values in its parameters
    frozen: tuple[str, ...] = ()  # parameters of the same modules that do not train


class Layers(tuple[Layer, ...]):
    """The ordered layers of one module. `layers[0]` is layer 1: messages and docs count from 1."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        if not self:
            raise SalfError(
                "the model has no parameters that train, so it has no layers: set "
                "requires_grad=True for those that are to be trained."
            )
        self.index_of: Mapping[str, int] = {
            name: index
            for index, layer in enumerate(self)
            for name in (*layer.parameters, *layer.buffers)
        }

    def __str__(self) -> str:
        """A table: number, name, size, and names of the parameters."""
        names = max(len(layer.name) for layer in self)
        lines = [f"{len(self)} layers, from the input to the output:"]
        for number, layer in enumerate(self, 1):
            owned = shorten(", ".join(layer.parameters), 60, placeholder=" ...")
            lines.append(f"{number:4}  {layer.name:{names}}  {layer.size:11,}  {owned}")
        return "\n".join(lines)

    def reached(self, depth: int) -> tuple[Layer, ...]:
        """The layers a user of this depth has gradients of: d..L, from [ltUsers]."""
        if not 1 <= depth <= len(self) + 1:
            raise SalfError(f"depth {depth} is outside 1..{len(self) + 1} ({len(self)} layers).")
        return self[depth - 1 :]

    @classmethod
    def of(
        cls,
        module: nn.Module,
        given: Sequence[Prefixes] | None = None,
        example: Tensor | None = None,
    ) -> "Layers":
        """Split `module` into layers, by `given` names or prefixes or by the default rule.

        By default every child with parameters is a layer. `nn.Sequential`, `nn.ModuleList` and
        modules that hold a list of equal blocks are opened; any other composite module, such as a
        residual block, is one layer. A norm joins the module before it or, after a block, the next
        layer; a parameter of an opened module joins the layer it is used after. Layers are in the
        order in which the forward pass first uses them, which takes an `example` input for a module
        that is not an `nn.Sequential`.

        `given` layers must be in that order too: a gradient is complete only when backpropagation
        has passed the first use. With an `example`, any other order is an error.
        """
        groups = _blocks(module, example) if given is None else _by_prefix(module, given)
        layers = _claim(module, groups)
        if given is not None and example is not None:
            _check_order(module, layers, example)
        return cls(layers)


def is_sent(tensor: Tensor, is_parameter: bool) -> bool:
    """Whether a layer's tensor is part of an update: what trains, and buffers that have a mean."""
    return tensor.requires_grad if is_parameter else tensor.dtype != torch.bool


def is_sequential(module: nn.Module) -> bool:
    """Whether the forward pass is that of `nn.Sequential` itself, not of a subclass's own."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


# ---- the default rule -----------------------------------------------------------------------

# Modules (or parameters), by their names, that will be one layer, and its name.
_Group = tuple[str, list[str]]


def flatten(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The children of a Sequential with nested Sequentials opened, with their full names."""
    return _children(module, is_sequential, prefix)


def _children(
    module: nn.Module, opened: Callable[[nn.Module], bool], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    # Not named_children(), which hides the second use of a module that stands in two places.
    for name, child in module._modules.items():
        if child is not None and opened(child):
            yield from _children(child, opened, f"{prefix}{name}.")
        elif child is not None:
            yield f"{prefix}{name}", child


def _is_list(module: nn.Module) -> bool:
    return is_sequential(module) or isinstance(module, nn.ModuleList | nn.ModuleDict)


def _is_block(module: nn.Module) -> bool:
    """Whether a module is more than one operation with parameters, and no mere list of modules."""
    weighted = [
        each
        for each in module.modules()
        if not isinstance(each, NORMALISATION) and [*each.parameters(recurse=False)]
    ]
    return len(weighted) > 1 and not _is_list(module)


def _is_opened(module: nn.Module) -> bool:
    """Whether a module is a list, or holds one with several blocks of one class."""
    lists = [each for each in module.modules() if _is_list(each)]
    kinds = [Counter(type(each) for each in some.children() if _is_block(each)) for some in lists]
    return _is_list(module) or any(count > 1 for kind in kinds for count in kind.values())


def _blocks(module: nn.Module, example: Tensor | None) -> list[_Group]:
    inner, prefix = _unwrapped(module)
    children = list(_children(inner, _is_opened, prefix))
    plain = is_sequential(module) and children == list(flatten(module))
    units = children if plain else _in_order_of_use(module, children, example)
    groups: list[_Group] = []
    waiting: list[str] = []  # for the next layer
    after_block = False
    for name, unit in units:
        latest = groups[-1][1] if groups else waiting
        if isinstance(unit, Tensor):
            (waiting or latest).append(name)
        elif not [*unit.parameters()]:
            latest.extend([name] if unit.state_dict() else [])
        elif groups and isinstance(unit, NORMALISATION):
            (waiting if after_block else latest).append(name)
        else:
            groups.append((name, [*waiting, name]))
            waiting, after_block = [], _is_block(unit)
    if waiting:
        groups = groups or [(waiting[0], [])]
        groups[-1][1].extend(waiting)
    return groups


def _unwrapped(module: nn.Module, prefix: str = "") -> tuple[nn.Module, str]:
    """What a module with a single child wraps, if it does, and its name as a prefix."""
    parts = {name.partition(".")[0] for name, _ in module.named_parameters()}
    child = module._modules.get(min(parts)) if len(parts) == 1 else None
    if child is None or is_sequential(module) or not [*child.children()]:
        return module, prefix
    if [*child.parameters(recurse=False)] and not _is_opened(child):
        return module, prefix
    return _unwrapped(child, f"{prefix}{min(parts)}.")


def _in_order_of_use(
    module: nn.Module, units: list[tuple[str, nn.Module]], example: Tensor | None
) -> list[tuple[str, nn.Module | Tensor]]:
    """The units that a forward pass uses, and the parameters that are in none of them."""
    if example is None:
        raise SalfError(
            f"{type(module).__name__} is not an nn.Sequential, so its layers are ordered by a "
            "forward pass: give an example input, or give the layers by name."
        )
    first = _first_uses(module, example)
    inside = {id(parameter) for _, unit in units for parameter in unit.parameters()}
    bare = [(name, p) for name, p in module.named_parameters() if id(p) not in inside]

    def began(each: nn.Module | Tensor) -> float:
        # A module may also be used by a function of its parameters, without a call of it.
        parameters = each.parameters() if isinstance(each, nn.Module) else []
        used = [first[id(p)] for p in parameters if id(p) in first]
        return first.get(id(each), min(used, default=inf))

    found: list[tuple[str, nn.Module | Tensor]] = [*units, *bare]
    used = [(name, each) for name, each in found if began(each) < inf]
    return sorted(used, key=lambda pair: began(pair[1]))


def _first_uses(module: nn.Module, example: Tensor) -> dict[int, int]:
    """When a forward pass first uses each module and parameter, as numbers by their ids.

    This is also the reverse of the order in which backpropagation completes their gradients.
    """
    own = {id(each) for each in (*module.modules(), *module.parameters())}
    first: dict[int, int] = {}

    def note(used: Iterable[object]) -> None:
        now = len(first)
        for each in used:
            if id(each) in own:
                first.setdefault(id(each), now)

    with (
        unchanged(module),
        register_module_forward_pre_hook(lambda called, _: note([called])),
        Operations(note),
    ):
        module(example)
    return first


# ---- by hand --------------------------------------------------------------------------------


def _by_prefix(module: nn.Module, given: Sequence[Prefixes]) -> list[_Group]:
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    known = [*names, *(name for name, _ in module.named_buffers())]
    entries = [[entry] if isinstance(entry, str) else list(entry) for entry in given]
    for prefix in (prefix for prefixes in entries for prefix in prefixes):
        if not any(_under(name, prefix) for name in known):
            raise SalfError(
                f"the layer {prefix!r} names no parameter. The parameters are: {', '.join(names)}."
            )
    return [(" + ".join(prefixes), prefixes) for prefixes in entries]


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _claim(module: nn.Module, groups: list[_Group]) -> list[Layer]:
    """Give every parameter that trains to exactly one layer, or say which is not in exactly one."""
    tensors = dict(module.named_parameters())
    # A parameter shared by two modules has two names and one place: the layer used first,
    # because backpropagation completes its gradient only there.
    aliases: dict[int, list[str]] = {}
    for alias, parameter in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(alias)

    def claimants(names: Sequence[str]) -> list[int]:
        return [
            index
            for index, (_, prefixes) in enumerate(groups)
            if any(_under(name, prefix) for name in names for prefix in prefixes)
        ]

    parameters, frozen, buffers = (defaultdict[int, list[str]](list) for _ in range(3))
    for name, tensor in tensors.items():
        owners = claimants(aliases[id(tensor)])
        if tensor.requires_grad and not owners:
            raise SalfError(
                f"the parameter {name!r} belongs to no layer: no given name covers it, or the "
                "forward pass does not use it through a module of its own. Give the layers by name "
                "so that each parameter is in one, or freeze it with requires_grad=False."
            )
        if tensor.requires_grad and len(owners) > len(aliases[id(tensor)]):
            raise SalfError(
                f"the parameter {name!r} belongs to more than one layer: "
                f"{', '.join(groups[index][0] for index in owners)}."
            )
        for index in owners[:1]:
            (parameters if tensor.requires_grad else frozen)[index].append(name)
    for name, _ in module.named_buffers():
        own = [*module.get_submodule(name.rpartition(".")[0]).parameters(recurse=False)]
        if not own or any(parameter.requires_grad for parameter in own):
            for index in claimants([name])[:1]:
                buffers[index].append(name)
    return [
        Layer(
            groups[index][0],
            tuple(names),
            tuple(buffers[index]),
            sum(tensors[name].numel() for name in names),
            tuple(frozen[index]),
        )
        for index, names in sorted(parameters.items())
    ]


def _check_order(module: nn.Module, layers: Sequence[Layer], example: Tensor) -> None:
    """Refuse layers in another order than that in which the forward pass first uses them."""
    first, parameters = _first_uses(module, example), dict(module.named_parameters())
    when = {
        layer.name: min(used)
        for layer in layers
        if (used := [first[id(p)] for n in layer.parameters if id(p := parameters[n]) in first])
    }
    for early, late in pairwise(when):
        if when[early] > when[late]:
            right = sorted(when, key=when.__getitem__)
            raise SalfError(
                f"the layers are in the wrong order: backpropagation completes {early!r} before "
                f"{late!r}, so {early!r} must come later. The order is: {', '.join(right)}."
            )


def parse_layers(text: str) -> list[str | list[str]]:
    """Layers as people write them: `stem,body+norm,head`, `+` joining several into one."""
    entries = ([name.strip() for name in entry.split("+")] for entry in text.split(","))
    return [names if len(names) > 1 else names[0] for names in entries]


# ---- what layers are for ----------------------------------------------------------------------


def backward_to(
    depth: int, loss: Tensor, parameters: Mapping[str, Tensor], layers: Layers
) -> dict[str, Tensor]:
    """[PartGrad]: the gradients of layers d..L, computed without touching the layers below.

    `parameters` maps the names that `layers` uses to the tensors `loss` was computed from.
    A parameter the loss does not depend on gets a gradient of zeros; a frozen one gets none.
    """
    names = [
        name
        for layer in layers.reached(depth)
        for name in layer.parameters
        if parameters[name].requires_grad
    ]
    if not names:
        return {}
    wanted = [parameters[name] for name in names]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, wanted, found, strict=True)
    }
