"""Who computes a round: `loop` (any module, the oracle) and `fused` (fast)."""

import inspect
from collections.abc import Mapping

from torch import nn

from salf import registry
from salf.engines.base import Engine, RoundResult, Rows, Weights
from salf.engines.fused import FusedEngine, blocks_of
from salf.engines.loop import LoopEngine
from salf.engines.losses import Loss, RowLoss, cross_entropy
from salf.errors import SalfError
from salf.layers import Layers

ENGINES: Mapping[str, type[Engine]] = {"loop": LoopEngine, "fused": FusedEngine}


GROUP = "salf.engines"  # of entry points, for packages that bring engines


def find(name: str) -> type[Engine] | None:
    """The class of an engine, by name or import path; None for `auto`."""
    cls = registry.find("engine", name, {**ENGINES, "auto": None}, GROUP)
    if cls is not None and not (
        inspect.isclass(cls) and issubclass(cls, Engine) and not inspect.isabstract(cls)
    ):
        raise SalfError(f"the engine {name!r} must be a class derived from salf.engines.Engine.")
    return cls


def engine(name: str, model: nn.Module, layers: Layers, loss: Loss = cross_entropy) -> Engine:
    """The engine of this name; `auto` takes the fused one where the model allows it."""
    if (cls := find(name)) is not None:
        return cls(model, layers, loss)
    blocks = blocks_of(model, layers)
    made = (LoopEngine if isinstance(blocks, str) else FusedEngine)(model, layers, loss)
    made.why = (
        f"{blocks}, so users are computed one at a time"
        if isinstance(blocks, str)
        else "the model is a plain nn.Sequential"
    )
    return made


__all__ = [
    "ENGINES",
    "Engine",
    "FusedEngine",
    "LoopEngine",
    "Loss",
    "RoundResult",
    "RowLoss",
    "Rows",
    "Weights",
    "cross_entropy",
    "engine",
    "find",
]
