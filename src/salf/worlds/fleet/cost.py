"""The cost of a row in each layer of a model, and batches that take all devices as long."""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.arrivals import Floats, Ints
from salf.core.compression import Compression, upload_bytes
from salf.core.layers import Layers
from salf.core.work import work
from salf.worlds.fleet.devices import Devices

MOST = 4  # times the batch size is the largest batch


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost of one row of a batch in each layer, and the bytes of the layer.

    `sent` are those of its update where that is compressed.
    """

    forward: Floats  # multiply-adds of layer 1..L
    backward: Floats
    bytes: Floats
    sent: Floats | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layers: Layers,
        example: Tensor,
        compression: Compression | None = None,
    ) -> "Cost":
        """Count on the module, for a batch `example`."""
        found, rows = work(model, layers, example), len(example)
        sent = None
        if compression is not None:
            weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            sent = np.array(upload_bytes(compression, layers, weights), np.float64)
        forward, backward, bytes_ = (
            np.array([getattr(each, name) for each in found], np.float64) / per
            for name, per in (("forward", rows), ("backward", rows), ("bytes", 1))
        )
        return cls(forward, backward, bytes_, sent)

    @property
    def upload(self) -> Floats:
        return self.bytes if self.sent is None else self.sent

    @property
    def layers(self) -> int:
        return len(self.bytes)

    def stages(self) -> Floats:
        """The multiply-adds of each stage: layers from the last, which has the forward pass."""
        found = self.backward[::-1].copy()
        found[0] += self.forward.sum()
        return found

    def counted_as(self, devices: Devices) -> "Cost":
        """The cost in what the devices' speed counts."""
        if devices.counted == "multiply-adds":
            if not self.backward.sum() > 0:
                raise SalfError(
                    "no multiply-adds are counted in this model (matrix products, convolutions and "
                    'attention are), so its time is unknown; use a fleet with counted="layers".'
                )
            return self
        even = np.full(self.layers, 1 / devices.REFERENCE)
        return replace(self, forward=np.zeros(self.layers), backward=even)


def equal_time(
    devices: Devices, cost: Cost, batch_size: int, steps: int = 1, seconds: float | None = None
) -> Ints:
    """Batches in proportion to speed, so that they take every user about as long.

    A round takes as long as `batch_size` rows take the median device; or, with a deadline of
    `seconds`, no longer than that leaves after download and upload, without jitter. Nobody has more
    than `MOST` times as many rows, and everybody has one.
    """
    counted = cost.counted_as(devices)
    of_row = steps * float(counted.forward.sum() + counted.backward.sum())
    time = np.full(len(devices.speed), batch_size * of_row / np.median(devices.speed))
    if seconds is not None:
        down, up = float(cost.bytes.sum()), float(cost.upload.sum())
        link = down / devices.down + up / devices.up + 2 * devices.latency
        time = np.minimum(time, np.maximum(seconds - link, 0))
    rows = np.rint(time * devices.speed / of_row)
    return np.clip(rows, 1, MOST * batch_size).astype(np.int64)
