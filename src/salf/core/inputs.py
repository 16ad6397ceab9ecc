"""What goes into a model and comes out: several inputs kept together, and trying a module out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Inputs:
    """The tensors of a model with several inputs, by position or by name, one row per sample.

    It has what engines and data use of a tensor, so that they need not know which of both they
    have. `takes_several` makes a model accept it. Keys are positions 0, 1, ... or names.
    """

    def __init__(self, parts: Mapping[str | int, Tensor]) -> None:
        self.parts = dict(parts)

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, index: Any) -> "Inputs":
        return self._each(lambda part: part[index])

    def __setitem__(self, index: Any, rows: "Inputs") -> None:
        for key, part in self.parts.items():
            part[index] = rows.parts[key]

    @property
    def shape(self) -> tuple[Any, ...]:
        return len(self), *(tuple(part.shape[1:]) for part in self.parts.values())

    @property
    def dtype(self) -> str:
        return ", ".join(str(part.dtype) for part in self.parts.values())

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def dim(self) -> int:
        return min(part.dim() for part in self.parts.values())

    def is_floating_point(self) -> bool:
        return any(part.is_floating_point() for part in self.parts.values())

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> "Inputs":
        """Move the tensors, and convert those that are floating point."""
        return self._each(lambda p: p.to(device, dtype if p.is_floating_point() else None))

    def index_select(self, dim: int, index: Tensor) -> "Inputs":
        return self._each(lambda part: part.index_select(dim, index))

    def clone(self) -> "Inputs":
        return self._each(Tensor.clone)

    def equal(self, other: "Inputs") -> bool:
        return all(part.equal(other.parts[key]) for key, part in self.parts.items())

    @property
    def _first(self) -> Tensor:
        return next(iter(self.parts.values()))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        return Inputs({key: change(part) for key, part in self.parts.items()})


def takes_several(model: nn.Module, inputs: object) -> None:
    """Let `model(inputs)` pass several inputs on as the arguments they are."""
    hooked = _unpack in model._forward_pre_hooks.values()
    if isinstance(inputs, Inputs) and not hooked:
        model.register_forward_pre_hook(_unpack, with_kwargs=True)


def _unpack(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not args or not isinstance(args[0], Inputs):
        return args, kwargs
    named = {key: part for key, part in args[0].parts.items() if isinstance(key, str)}
    return ((), named) if named else (tuple(args[0].parts.values()), {})


def as_one(example: Any) -> Any:
    """A batch as engines take it: several inputs, in a tuple or a dictionary, kept together."""
    if isinstance(example, Mapping):
        return Inputs(example)
    return Inputs(dict(enumerate(example))) if isinstance(example, tuple) else example


def cat(batches: Sequence[Any]) -> Any:
    """Batches of tensors, or of several inputs, one after the other."""
    first = batches[0]
    if not isinstance(first, Inputs):
        return torch.cat(list(batches))
    return Inputs({key: torch.cat([each.parts[key] for each in batches]) for key in first.parts})


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Try a module out: its buffers and the CPU's random state are afterwards as before."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


class Operations(TorchFunctionMode):
    """Calls `note` after every operation that computes, with the tensors that it was given."""

    def __init__(self, note: Callable[[list[Tensor]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(True for _ in tensors_in(result)):  # not a look at a parameter's shape or device
            self._note([*tensors_in([args, kwargs])])
        return result


def tensors_in(values: object) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and mappings."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, tuple | list):
        for each in values:
            yield from tensors_in(each)
