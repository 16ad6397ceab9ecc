"""Who computes a round: `loop` (any module, the oracle) and `fused` (fast)."""

from collections.abc import Mapping

from torch import nn

from salf.engines.base import Engine, RoundResult, RowLoss, Rows, Weights, cross_entropy
from salf.engines.fused import FusedEngine, blocks_of
from salf.engines.loop import LoopEngine
from salf.errors import unknown
from salf.layers import Layers

ENGINES: Mapping[str, type[Engine]] = {"loop": LoopEngine, "fused": FusedEngine}


def engine(name: str, model: nn.Module, layers: Layers, loss: RowLoss = cross_entropy) -> Engine:
    """The engine of this name; `auto` takes the fused one where the model allows it."""
    if name == "auto":
        name = "loop" if isinstance(blocks_of(model, layers), str) else "fused"
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    return ENGINES[name](model, layers, loss)


__all__ = [
    "ENGINES",
    "Engine",
    "FusedEngine",
    "LoopEngine",
    "RoundResult",
    "RowLoss",
    "Rows",
    "Weights",
    "cross_entropy",
    "engine",
]
