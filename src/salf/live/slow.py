"""Users made slow on purpose, to see what stragglers do on one machine.

A slow device works longer on everything it does; so every piece of work a model does is followed
by as much more of it as the device is slower. It is real work, and it happens before the deadline
as the layers' own does, not in a pause afterwards.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from salf.runs.live_config import slowness

__all__ = ["Slowdown", "slowness"]

_SIDE = 48  # of the matrices multiplied: some microseconds each


class Slowdown:
    """Makes passes through a model take `factor` times the processor time, layer by layer.

    It stays on the model. Both passes must run on the processor and in one thread.
    """

    def __init__(self, model: nn.Module, factor: float) -> None:
        self.factor = factor
        self._matrix = torch.full((_SIDE, _SIDE), 1 / _SIDE)
        self._product = torch.empty_like(self._matrix)
        self._mark = 0.0  # processor time of this thread when the last piece of work was over
        model.register_forward_pre_hook(self._begin)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self._after_module)
        for parameter in model.parameters():
            # Before the hooks of `Backpropagation`, added in each round: so it measures the delay.
            parameter.register_post_accumulate_grad_hook(self._catch_up)  # type: ignore[no-untyped-call]

    def _begin(self, *_: Any) -> None:
        self._mark = time.thread_time()

    def _after_module(self, *_: Any) -> None:
        self._catch_up()

    def _catch_up(self, _: Tensor | None = None) -> None:
        """Work on until all since the last piece has taken `factor` times what it did."""
        now = time.thread_time()
        until = now + (self.factor - 1) * (now - self._mark)
        with torch.no_grad():
            while (now := time.thread_time()) < until:
                torch.mm(self._matrix, self._matrix, out=self._product)
        self._mark = now
