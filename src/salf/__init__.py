"""salf: federated learning that never waits for stragglers.

The paper's method and those it is compared with (`salf.methods`), a simulator that runs them
(`salf.train`, the command `salf`), and the parts both are made of (`salf.core`, `salf.worlds`,
and `salf.core.deadline` for deadlines on real devices).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salf.common.errors import SalfError, TrainingDiverged
    from salf.comparing import Compared, compare
    from salf.core.aggregate import LayerwiseAggregate, Step
    from salf.core.arrivals import Arrivals, Closing
    from salf.core.deadline import Backpropagation, Partial
    from salf.core.layers import Layer, Layers, backward_to
    from salf.core.rows import Row
    from salf.core.rules import Done, LocalRule, LocalStep
    from salf.data import DataSet, Samples, from_tensors, load
    from salf.methods import METHODS, Method, method
    from salf.planning import Plan, plan
    from salf.problem import Problem
    from salf.runs.config import Config
    from salf.runs.own import train
    from salf.runs.presets import PRESETS
    from salf.runs.run import Result, run
    from salf.runs.training import History, StopTraining
    from salf.simulation import Simulation
    from salf.worlds.base import World
    from salf.worlds.fleet.devices import Fleet

# Where each public name lives. Loaded when first used, so that `salf --help` need not wait for
# torch, and a server that only aggregates need not load the simulator.
_HOMES = {
    "salf.core.aggregate": ("LayerwiseAggregate", "Step"),
    "salf.core.arrivals": ("Arrivals", "Closing"),
    "salf.comparing": ("Compared", "compare"),
    "salf.core.deadline": ("Backpropagation", "Partial"),
    "salf.data": ("DataSet", "Samples", "from_tensors", "load"),
    "salf.common.errors": ("SalfError", "TrainingDiverged"),
    "salf.runs.config": ("Config",),
    "salf.runs.presets": ("PRESETS",),
    "salf.runs.run": ("Result", "run"),
    "salf.runs.own": ("train",),
    "salf.runs.training": ("History", "StopTraining"),
    "salf.worlds.fleet.devices": ("Fleet",),
    "salf.core.layers": ("Layer", "Layers", "backward_to"),
    "salf.core.rules": ("Done", "LocalRule", "LocalStep"),
    "salf.methods": ("METHODS", "Method", "method"),
    "salf.planning": ("Plan", "plan"),
    "salf.problem": ("Problem",),
    "salf.core.rows": ("Row",),
    "salf.simulation": ("Simulation",),
    "salf.worlds.base": ("World",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "METHODS", "PRESETS", "Arrivals", "Backpropagation", "Closing", "Compared", "Config",
    "DataSet", "Done", "Fleet", "History", "Layer", "Layers", "LayerwiseAggregate", "LocalRule",
    "LocalStep", "Method", "Partial", "Plan", "Problem", "Result", "Row", "SalfError", "Samples",
    "Simulation", "Step", "StopTraining", "TrainingDiverged", "World", "backward_to", "compare",
    "from_tensors", "load", "method", "plan", "run", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("salf.common").version()
    if name not in _HOME_OF:
        raise AttributeError(f"module 'salf' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
