"""What TensorBoard shows of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from salf.common.notebook import package
from salf.core.rows import Row, columns


@dataclass
class TensorBoard:
    """An `on_round` that writes the columns of metrics.csv for TensorBoard, into a folder.

    With a fleet, the wall time of TensorBoard is the simulated clock.
    """

    folder: Path | str
    writer: Any = field(default=None, init=False, repr=False)  # made where the run is

    def __call__(self, row: Row, model: nn.Module) -> None:
        if self.writer is None:
            events = package("torch.utils.tensorboard", "'salf[tensorboard]'")
            self.writer = events.SummaryWriter(str(self.folder), purge_step=row.round)
        for name, value in columns([row])[0].items():
            if value is not None and name != "round":
                self.writer.add_scalar(name, value, row.round, walltime=row.clock)
        self.writer.flush()  # nobody says when the last round was
