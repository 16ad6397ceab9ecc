"""salf: federated learning that never waits for stragglers.

The paper's method and those it is compared with (`salf.methods`), a simulator that runs them
(`salf.train`, the command `salf`), and the parts both are made of (`salf.layers`, `salf.depth`,
`salf.aggregate`, `salf.backprop`, and `salf.deadline` for deadlines on real devices).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salf.aggregate import LayerwiseAggregate, Step
    from salf.arrivals import Arrivals, Closing
    from salf.backprop import backward_to
    from salf.comparing import Compared, compare
    from salf.data import DataSet, Samples, from_tensors, load
    from salf.deadline import Backpropagation, Partial
    from salf.errors import SalfError, TrainingDiverged
    from salf.experiments.config import Config
    from salf.experiments.own import train
    from salf.experiments.presets import PRESETS
    from salf.experiments.run import Result, run
    from salf.experiments.training import History, StopTraining
    from salf.fleet.devices import Fleet
    from salf.layers import Layer, Layers
    from salf.methods import METHODS, Method, method
    from salf.planning import Plan, plan
    from salf.rows import Row
    from salf.simulation import Simulation
    from salf.worlds import World

# Where each public name lives. Loaded when first used, so that `salf --help` need not wait for
# torch, and a server that only aggregates need not load the simulator.
_HOMES = {
    "salf.aggregate": ("LayerwiseAggregate", "Step"),
    "salf.arrivals": ("Arrivals", "Closing"),
    "salf.backprop": ("backward_to",),
    "salf.comparing": ("Compared", "compare"),
    "salf.deadline": ("Backpropagation", "Partial"),
    "salf.data": ("DataSet", "Samples", "from_tensors", "load"),
    "salf.errors": ("SalfError", "TrainingDiverged"),
    "salf.experiments.config": ("Config",),
    "salf.experiments.presets": ("PRESETS",),
    "salf.experiments.run": ("Result", "run"),
    "salf.experiments.own": ("train",),
    "salf.experiments.training": ("History", "StopTraining"),
    "salf.fleet.devices": ("Fleet",),
    "salf.layers": ("Layer", "Layers"),
    "salf.methods": ("METHODS", "Method", "method"),
    "salf.planning": ("Plan", "plan"),
    "salf.rows": ("Row",),
    "salf.simulation": ("Simulation",),
    "salf.worlds": ("World",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "METHODS",
    "PRESETS",
    "Arrivals",
    "Backpropagation",
    "Closing",
    "Compared",
    "Config",
    "DataSet",
    "Fleet",
    "History",
    "Layer",
    "Layers",
    "LayerwiseAggregate",
    "Method",
    "Partial",
    "Plan",
    "Result",
    "Row",
    "SalfError",
    "Samples",
    "Simulation",
    "Step",
    "StopTraining",
    "TrainingDiverged",
    "World",
    "backward_to",
    "compare",
    "from_tensors",
    "load",
    "method",
    "plan",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'salf' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
