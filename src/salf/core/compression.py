"""Compression of updates, layer by layer: fewer bytes on a user's way up.

All gradients of a layer are one vector v of n numbers. Sent are

- fp16: v in 16 bits,
- qsgd:BITS (Alistarh et al., "QSGD", 2017): with s = 2^(BITS-1) - 1 levels, sign(v_i) q_i and the
  largest |v|, where q_i is s |v_i| / max |v| rounded up or down at random such that the mean is
  right: unbiased,
- topk:FRACTION: the largest of them and their places. What was not sent is added to the user's next
  gradient of the layer (error feedback: Seide et al., 2014; Stich et al., 2018).

Buffers are sent as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.draws import Keyed, Purpose
from salf.core.layers import Layers, is_sent
from salf.core.rules import Tensors

_LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Compression:
    """How updates are compressed: `fp16`, `qsgd` with so many bits, or `topk` with a fraction."""

    kind: str
    bits: int = 0
    fraction: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Compression | None":
        """`fp16`, `qsgd:4` or `topk:0.1`; None for none."""
        kind, _, value = text.partition(":")
        try:
            if kind in ("", "none") and not value:
                return None
            if kind == "fp16" and not value:
                return cls(kind)
            if kind == "qsgd" and 2 <= int(value) <= 8:
                return cls(kind, bits=int(value))
            if kind == "topk" and 0 < float(value) <= 1:
                return cls(kind, fraction=float(value))
        except ValueError:
            pass
        raise SalfError(
            f"compress must be fp16, qsgd:BITS (2 to 8) or topk:FRACTION (at most 1), not {text!r}."
        )

    def bytes(self, n: int, of_each: int) -> int:
        """The bytes of n compressed numbers, of so many bytes each before."""
        if self.kind == "fp16":
            return 2 * n
        if self.kind == "qsgd":
            return -(-n * self.bits // 8) + of_each
        return self._largest(n) * (4 + of_each)

    @property
    def remembers(self) -> bool:
        """Whether users keep what they did not send: as much as a model each."""
        return self.kind == "topk"

    def _largest(self, n: int) -> int:
        return max(1, round(self.fraction * n)) if n else 0

    @property
    def _levels(self) -> int:
        """How many levels of one sign `qsgd` has above 0."""
        return (1 << self.bits - 1) - 1

    def pack(self, vector: Tensor, draws: Keyed, user: int, layer: int) -> dict[str, Tensor]:
        """A vector as it is sent by user `user` of layer `layer`, both from 0."""
        if self.kind == "fp16":
            return {"half": vector.clamp(-_LARGEST, _LARGEST).half()}
        if self.kind == "topk":
            places = vector.abs().topk(self._largest(len(vector))).indices.sort().values
            return {"places": places.int(), "values": vector[places]}
        scale = vector.abs().max()
        uniform = draws.uniform(np.array([user]), Purpose.ROUNDING, len(vector), layer + 1)[0]
        level = vector.cpu().double().numpy() * (self._levels / (float(scale) or 1.0))
        codes = np.sign(level) * np.floor(np.abs(level) + uniform) + self._levels
        bits = np.unpackbits(codes.astype(np.uint8)[:, None], axis=1)[:, 8 - self.bits :]
        return {"codes": torch.from_numpy(np.packbits(bits)), "scale": scale.reshape(1)}

    def unpack(self, parts: Mapping[str, Tensor], n: int, like: Tensor) -> Tensor:
        """The vector of n numbers that was sent; ValueError if it is none."""
        names = {"fp16": ["half"], "topk": ["places", "values"], "qsgd": ["codes", "scale"]}
        if sorted(parts) != names[self.kind]:
            raise ValueError(f"it has entries other than {' and '.join(names[self.kind])}")
        if self.kind == "fp16":
            return _checked(parts["half"], torch.float16, n).to(like)
        if self.kind == "topk":
            places = _checked(parts["places"], torch.int32, self._largest(n)).long().cpu()
            values = _checked(parts["values"], like.dtype, self._largest(n)).cpu()
            if bool((places < 0).any() or (places >= n).any() or (places.diff() <= 0).any()):
                raise ValueError("indices are not sorted, or are outside the layer")
            return torch.zeros(n, dtype=like.dtype).index_copy(0, places, values).to(like)
        codes = _checked(parts["codes"], torch.uint8, -(-n * self.bits // 8))
        scale = _checked(parts["scale"], like.dtype, 1)
        bits = np.unpackbits(codes.cpu().numpy(), count=n * self.bits).reshape(n, self.bits)
        numbers = bits @ (1 << np.arange(self.bits)[::-1])
        if (numbers > 2 * self._levels).any():
            raise ValueError("an unknown code")
        found = torch.from_numpy((numbers - self._levels) / self._levels) * float(scale)
        return found.to(like.dtype).to(like.device)


def _checked(part: Tensor, dtype: torch.dtype, n: int) -> Tensor:
    if part.dtype != dtype or part.shape != (n,):
        raise ValueError("wrong shape or type")
    return part


@dataclass
class Sender:
    """A user's side: what it compresses, and what it has not sent yet of each layer."""

    compression: Compression
    layers: Layers
    seed: int
    number: int  # of the user, from 0
    residuals: dict[int, Tensor] = field(default_factory=dict)

    def packed(self, update: Tensors, t: int) -> dict[str, Tensor]:
        sent, draws = dict(update), Keyed(self.seed, t)
        for index, layer in enumerate(self.layers):
            names = [name for name in layer.parameters if name in update]
            if not names:
                continue
            vector = torch.cat([sent.pop(name).flatten() for name in names])
            if index in self.residuals:
                vector = vector + self.residuals[index]
            parts = self.compression.pack(vector, draws, self.number, index)
            if self.compression.remembers:
                back = self.compression.unpack(parts, len(vector), vector)
                self.residuals[index] = vector - back
            sent |= {_key(index, part): value for part, value in parts.items()}
        return sent


def _key(index: int, part: str) -> str:
    return f"layer {index + 1}: {part}"


def unpacked(
    sent: Tensors, compression: Compression, layers: Layers, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """An update, decompressed; ValueError if it is none.

    `like` has the shapes of the gradients that are compressed.
    """
    found = dict(sent)
    for index, layer in enumerate(layers):
        prefix = _key(index, "")
        keys = [key for key in sent if key.startswith(prefix)]
        if not keys:
            continue
        names = [name for name in layer.parameters if name in like]
        if not names:
            raise ValueError(f"layer {index + 1} is not trained")
        sizes = [like[name].numel() for name in names]
        parts = {key.removeprefix(prefix): found.pop(key) for key in keys}
        vector = compression.unpack(parts, sum(sizes), like[names[0]].detach())
        for name, value in zip(names, torch.split(vector, sizes), strict=True):
            found[name] = value.view(like[name].shape)
    return found


def upload_bytes(
    layers: Layers, weights: Mapping[str, Tensor], compression: Compression | None = None
) -> list[int]:
    """The bytes of each layer in an update of this model: gradients, and differences of buffers."""
    found = []
    for layer in layers:
        trained = [each for n in layer.parameters if is_sent(each := weights[n], True)]
        sent = sum(each.nbytes for n in layer.buffers if is_sent(each := weights[n], False))
        if compression is None or not trained:
            sent += sum(each.nbytes for each in trained)
        else:
            n = sum(each.numel() for each in trained)
            sent += compression.bytes(n, trained[0].element_size())
        found.append(sent)
    return found
