"""Users made slow on purpose, to see what stragglers do on one machine.

A slow device takes longer for everything it does; so every piece of work a model does is followed
by a pause of as many times its length as the device is slower, before the deadline as the layers'
own work is. Users that pause leave the cores to others, so a few cores are enough for many devices.
"""

import time
from typing import Any

from torch import Tensor, nn

from salf.runs.live_config import slowness

__all__ = ["Slowdown", "slowness"]

_SHORTEST = 1e-4  # seconds of a pause: shorter ones would take longer than they should
_CREDIT = 1e-3  # seconds that pauses were too long for which later ones are shorter, at most


class Slowdown:
    """Makes passes through a model take `factor` times as long, layer by layer.

    It stays on the model. Both passes must run on the processor and in one thread.
    """

    def __init__(self, model: nn.Module, factor: float) -> None:
        self.factor = factor
        self._mark = 0.0  # processor time of this thread when the last piece of work was over
        self._owed = 0.0  # seconds to pause
        model.register_forward_pre_hook(self._begin)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self._after_module)
        for parameter in model.parameters():
            # Before the hooks of `Backpropagation`, added in each round: so it measures the delay.
            parameter.register_post_accumulate_grad_hook(self._pause)  # type: ignore[no-untyped-call]

    def _begin(self, *_: Any) -> None:
        self._mark = time.thread_time()

    def _after_module(self, *_: Any) -> None:
        self._pause()

    def _pause(self, _: Tensor | None = None) -> None:
        """Pause until all since the last piece has taken `factor` times what it did."""
        self._owed += (self.factor - 1) * (time.thread_time() - self._mark)
        if self._owed >= _SHORTEST:
            begun = time.perf_counter()
            time.sleep(self._owed)
            self._owed = max(self._owed - (time.perf_counter() - begun), -_CREDIT)
        self._mark = time.thread_time()
