"""What a user sends, as bytes and back. Decoding runs no code from the wire."""

import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from salf.common.errors import in_one_line

_FORMAT = "salf-1"
_MOST_STAGES = 10_000
_HEADER = struct.Struct("<Q")  # how safetensors begins: the length of the JSON that follows
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Rejected(Exception):
    """An update that must not touch the model, and why."""


@dataclass(frozen=True)
class Update:
    """One user's part of a round: its gradients of layers d..L, and its buffers' differences.

    With several local steps, the sum of its gradients; `depth` is that of the last step begun.
    """

    user: str
    round: int
    depth: int
    tensors: Mapping[str, Tensor]
    loss: float = 0.0
    seconds: float = 0.0  # from the start of the round on the user's own clock
    steps: int = 1  # local steps begun
    planned: int = 1  # local steps that make a whole round
    rows: int = 0  # of its batches, if it chooses their size
    pace: float = 0.0  # seconds that a row usually takes it; 0 if unknown
    # Seconds of the completed stages of the first step: until layer L is complete, layer L-1, ...
    stages: tuple[float, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What it says of itself beside its tensors, by name."""
        names = ("depth", "loss", "seconds", "steps", "planned", "rows", "pace")
        return {**{name: getattr(self, name) for name in names}, "stages": list(self.stages)}


def encode(update: Update) -> bytes:
    """An update as safetensors, with what is not a tensor in its header."""
    about = {
        "format": _FORMAT,
        "user": update.user,
        "round": update.round,
        **update.numbers(),
    }
    return _packed(update.tensors, {"update": json.dumps(about)})


def encode_model(weights: Mapping[str, Tensor]) -> bytes:
    """A model on its way to the users."""
    return _packed(weights)


def _packed(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """As safetensors. Its own `save` takes twenty times as long, a quarter of a round of 1 MB."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    if sys.byteorder != "little" or any(t.dtype not in _DTYPES for t in whole.values()):
        saved: bytes = save(whole, metadata)
        return saved
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    parts: list[Any] = []
    end = 0
    # The widest numbers first, so that all begin where numbers of their width may.
    for name, tensor in sorted(whole.items(), key=lambda item: -item[1].element_size()):
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy())
        begin, end = end, end + tensor.nbytes
        dtype, shape = _DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([_HEADER.pack(len(text)), text, *parts])


def decode_model(data: bytes) -> dict[str, Tensor]:
    """A model as it came, in the memory it came in."""
    return dict(load(data))


def decode(data: bytes, most_bytes: int) -> Update:
    """An update from the wire. Whatever the bytes are, it is an Update or `Rejected`."""
    if len(data) > most_bytes:
        raise Rejected(f"too large: {len(data)} bytes, the limit is {most_bytes}")
    try:
        about = _about(data)
        # Every tensor a copy: torch would share the memory of `data`, which cannot be written.
        tensors = {name: tensor.clone() for name, tensor in load(data).items()}
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        RecursionError,
    ) as error:
        raise Rejected(f"not an update: {in_one_line(error)}") from None
    if about.get("format") != _FORMAT:
        raise Rejected(f"unknown format: {str(about.get('format'))[:40]!r}")
    return Update(
        user=text_of(about, "user"),
        round=whole_of(about, "round"),
        depth=whole_of(about, "depth"),
        tensors=tensors,
        loss=number_of(about, "loss"),
        seconds=number_of(about, "seconds"),
        steps=whole_of(about, "steps"),
        planned=whole_of(about, "planned"),
        **optional_of(about),
    )


def _about(data: bytes) -> dict[str, Any]:
    if len(data) < _HEADER.size:
        raise ValueError("too short")
    (length,) = _HEADER.unpack_from(data)
    header = json.loads(data[_HEADER.size : _HEADER.size + length])
    about = json.loads(header["__metadata__"]["update"])
    if not isinstance(about, dict):
        raise TypeError("its header is not a table")
    return about


def text_of(about: Mapping[str, Any], key: str) -> str:
    """A short text that came from a user, or `Rejected`."""
    value = about.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise Rejected(f"its {key} is not a short text")
    return value


def whole_of(about: Mapping[str, Any], key: str) -> int:
    """A number of at least 0 that came from a user, or `Rejected`."""
    value = about.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise Rejected(f"its {key} is not a number of at least 0")
    return value


def number_of(about: Mapping[str, Any], key: str) -> float:
    """A finite number that came from a user, or `Rejected`."""
    value = about.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Rejected(f"its {key} is not a number")
    if not -1e300 < value < 1e300:  # not isfinite, which raises for very large whole numbers
        raise Rejected(f"its {key} is not a finite number")
    return float(value)


def optional_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """What an update may have, or `Rejected`."""
    given = {"rows": 0, "pace": 0.0, "stages": (), **about}
    if not isinstance(stages := given["stages"], list | tuple):
        raise Rejected("its stages are not a list of numbers")
    return {
        "rows": whole_of(given, "rows"),
        "pace": number_of(given, "pace"),
        "stages": tuple(number_of({"stages": each}, "stages") for each in stages[:_MOST_STAGES]),
    }


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """The most bytes an update of such tensors takes, with room for its header."""
    content = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return content + 4096 + 512 * len(tensors) + sum(len(name) for name in tensors)
