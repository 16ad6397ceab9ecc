"""What a row costs in each layer of a model, and batches that take all devices as long."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from salf.core.arrivals import Floats, Ints
from salf.core.compression import Compression, upload_bytes
from salf.core.layers import Layers
from salf.core.work import Work, work
from salf.worlds.fleet.devices import Fleet

MOST = 4  # times the batch size is the largest batch


@dataclass(frozen=True, eq=False)
class Cost(Work):
    """The work of a step, and the bytes that are sent where updates are compressed."""

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
        sent = None
        if compression is not None:
            weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            sent = np.array(upload_bytes(layers, weights, compression), np.float64)
        return cls(**vars(work(model, layers, example)), sent=sent)

    @property
    def upload(self) -> Floats:
        return self.bytes if self.sent is None else self.sent

    @property
    def layers(self) -> int:
        return len(self.bytes)


def stages(passes: Floats) -> Floats:
    """What each stage has of [..., 2, L]: layers from the last, which has the forward pass."""
    found = passes[..., 1, ::-1].copy()
    found[..., 0] += passes[..., 0, :].sum(axis=-1)
    return found


def equal_time(
    devices: Fleet, cost: Cost, batch_size: int, steps: int = 1, seconds: float | None = None
) -> Ints:
    """Batches that take every user about as long: fewer rows on slower devices.

    A round takes as long as `batch_size` rows take the median device; or, with a deadline of
    `seconds`, no longer than that leaves after download and upload, without jitter. Nobody has more
    than `MOST` times as many rows, and everybody has one, even where the fixed part takes longer.
    """
    fixed, row = (
        steps * np.array([float(each[0].sum() + each[1].sum()) for each in parts])
        for parts in zip(*(kind.seconds(cost) for kind in devices.kinds), strict=True)
    )
    usual = fixed + batch_size * row
    pace = devices.speed * (usual[0] / usual[devices.kind])  # as if all were of the first class
    time = np.full(len(devices.speed), usual[0] / np.median(pace))
    if seconds is not None:
        down, up = float(cost.bytes.sum()), float(cost.upload.sum())
        link = down / devices.down + up / devices.up + 2 * devices.latency
        time = np.minimum(time, np.maximum(seconds - link, 0))
    rows = np.rint((time * devices.speed - fixed[devices.kind]) / row[devices.kind])
    return np.asarray(np.clip(rows, 1, MOST * batch_size), np.int64)
