"""Who computes a round: `loop` (any module, the oracle), `fused`, `grouped` and `stacked`."""

import inspect
from collections.abc import Mapping

from torch import Tensor, nn

from salf.common import registry
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.engines import mixing, stacked
from salf.engines.base import Engine, LocalSteps, LoopEngine, RoundResult, Rows, Weights
from salf.engines.blocks import GroupedEngine
from salf.engines.fused import FusedEngine, blocks_of, doubt
from salf.engines.losses import Loss, RowLoss, cross_entropy
from salf.engines.stacked import StackedEngine

ENGINES: Mapping[str, type[Engine]] = {
    "loop": LoopEngine,
    "fused": FusedEngine,
    "grouped": GroupedEngine,
    "stacked": StackedEngine,
}
GROUP = "salf.engines"  # of entry points, for packages that bring engines


def find(name: str) -> type[Engine] | None:
    """The class of an engine, by name or import path; None for `auto`."""
    cls = registry.find("engine", name, {**ENGINES, "auto": None}, GROUP)
    if cls is not None and not (inspect.isclass(cls) and issubclass(cls, Engine)):
        raise SalfError(f"the engine {name!r} must be a class derived from salf.engines.Engine.")
    return cls


def engine(
    name: str,
    model: nn.Module,
    layers: Layers,
    loss: Loss = cross_entropy,
    example: Tensor | None = None,
    several_steps: bool = False,
) -> Engine:
    """The engine of this name; `auto` takes the fastest that is certain to be right.

    That is the fused engine for an nn.Sequential, and the grouped engine for any other module. If
    the model has parts that are not known to keep the rows of different users apart, it is probed
    with `example` inputs. Without an example, or if a check fails, `auto` takes the loop engine.
    With `several_steps`, local ones, the stacked engine takes the place of the fast engines.
    """
    if (cls := find(name)) is not None:
        if several_steps and not cls.local_steps:
            raise SalfError(
                f"the {name} engine computes one local step: use engine 'auto', 'stacked' or "
                "'loop'."
            )
        return cls(model, layers, loss)
    kind: type[Engine] = LoopEngine
    blocks = blocks_of(model, layers)
    reason: str | None
    if several_steps:
        if (reason := stacked.obstacle(model, example)) is None:
            kind, why = StackedEngine, "local steps of all users are computed together"
    elif (reason := blocks if isinstance(blocks, str) else doubt(model)) is None:
        kind, why = FusedEngine, "the model is a plain nn.Sequential"
    elif example is not None:
        fast = GroupedEngine if isinstance(blocks, str) else FusedEngine
        reason = mixing.reason_for_the_loop(fast(model, layers, loss), example)
        if reason is None:
            kind = fast
            why = f"{type(model).__name__} keeps the rows of different users apart"
    if reason is not None:
        why = f"{reason}, so users are computed one at a time"
    chosen = kind(model, layers, loss)
    chosen.why = why
    return chosen


__all__ = [
    "ENGINES",
    "Engine",
    "FusedEngine",
    "GroupedEngine",
    "LocalSteps",
    "LoopEngine",
    "Loss",
    "RoundResult",
    "RowLoss",
    "Rows",
    "StackedEngine",
    "Weights",
    "cross_entropy",
    "engine",
    "find",
]
