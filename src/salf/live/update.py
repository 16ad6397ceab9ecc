"""What a server asks for and a user sends, as bytes and back. Decoding runs no code."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from salf.common.errors import in_one_line
from salf.core.rules import State

_HEADER = struct.Struct("<Q")  # how safetensors begins: the length of the JSON that follows
_WHOLE = ("depth", "steps", "planned", "rows")
_NUMBERS = ("loss", "seconds", "pace")
# What a user may say at most: a page shows the mean loss, and sums and arrays are made of these.
_MOST = dict.fromkeys(_WHOLE, 10**7) | {"loss": 1e12, "seconds": 1e8, "pace": 1e8}


@dataclass(frozen=True)
class Task:
    """A round as every user is asked for it. The deadline is a duration, from when it arrives."""

    round: int
    deadline: float | None
    weights: Mapping[str, Tensor]
    steps: int = 1  # local ones
    rate: float = 0.0  # of local steps
    step_seconds: float = 0.0  # that a step is to take users who choose their batch; 0 if unknown
    method: str = ""  # and its options, if it changes what users do (`salf.methods.to_wire`)
    server: State = field(default_factory=dict)  # the method's
    users: Mapping[str, State] = field(default_factory=dict)  # where the server keeps their states
    # For users that keep theirs: the last round in which the server used an update of each.
    used: Mapping[str, int] = field(default_factory=dict)

    def of(self, user: str) -> "Task":
        """The task without what is other users'."""
        return replace(
            self,
            users={name: own for name, own in self.users.items() if name == user},
            used={name: round for name, round in self.used.items() if name == user},
        )


class Rejected(Exception):
    """An update that must not touch the model, and why."""


@dataclass(frozen=True)
class Update:
    """One user's part of a round: its gradients of layers d..L, and its buffers' differences.

    With several local steps, the sum of its gradients; `depth` is that of the last step begun.
    """

    depth: int
    tensors: Mapping[str, Tensor]
    loss: float = 0.0
    seconds: float = 0.0  # from the start of the round on the user's own clock
    steps: int = 1  # local steps begun
    planned: int = 1  # local steps that make a whole round
    rows: int = 0  # of its batches, if it chooses their size
    pace: float = 0.0  # seconds that a row usually takes it; 0 if unknown

    @property
    def first(self) -> int:
        """The depth in the first local step."""
        return 1 if self.steps > 1 else self.depth


def encode(update: Update) -> bytes:
    """An update as safetensors, with what is not a tensor in its header."""
    said = {name: getattr(update, name) for name in (*_WHOLE, *_NUMBERS)}
    return encode_model(update.tensors, {"update": json.dumps(said)})


def encode_model(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as safetensors."""
    # Copies, because safetensors refuses tensors that share memory or are not contiguous.
    form = torch.contiguous_format
    whole = {name: each.detach().cpu().clone(memory_format=form) for name, each in weights.items()}
    return bytes(save(whole, metadata))


def decode(data: bytes, most_bytes: int) -> Update:
    """An update from the wire. Whatever the bytes are, it is an Update or `Rejected`."""
    if not isinstance(data, bytes):
        raise Rejected(f"not bytes: {type(data).__name__}")
    if len(data) > most_bytes:
        raise Rejected(f"too large: {len(data)} bytes, the limit is {most_bytes}")
    try:
        (length,) = _HEADER.unpack_from(data)
        header = json.loads(data[_HEADER.size : _HEADER.size + length])
        said = dict(json.loads(header["__metadata__"]["update"]))
        # Every tensor a copy: torch would share the memory of `data`, which cannot be written.
        tensors = {name: tensor.clone() for name, tensor in load(data).items()}
    except (
        *(SafetensorError, struct.error),
        *(ValueError, KeyError, TypeError, RuntimeError, RecursionError),
    ) as error:
        raise Rejected(f"not an update: {in_one_line(error)}") from None
    numbers = {name: _number(said, name) for name in (*_WHOLE, *_NUMBERS)}
    return Update(tensors=tensors, **numbers)


def _number(said: Mapping[str, Any], key: str) -> Any:
    """A number that a user says, or `Rejected`."""
    value: Any = said.get(key)
    whole, most = key in _WHOLE, _MOST[key]
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if number and (0 if whole else -most) <= value <= most:  # which NaN is not
        return value if whole else float(value)
    kind = "whole number from 0 to" if whole else "number of at most"
    raise Rejected(f"its {key} is not a {kind} {most:g}")


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """The most bytes an update of such tensors takes, with room for its header."""
    content = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return content + 4096 + 512 * len(tensors) + sum(len(name) for name in tensors)
