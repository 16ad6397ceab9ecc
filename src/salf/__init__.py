"""salf: federated learning that never waits for stragglers.

The paper's method and those it is compared with (`salf.methods`), a simulator that runs them
(`salf.train`, the command `salf`), and the parts both are made of (`salf.core`, `salf.worlds`,
and `salf.core.deadline` for deadlines on real devices).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salf.common.errors import SalfError as SalfError
    from salf.common.errors import TrainingDiverged as TrainingDiverged
    from salf.comparing import Compared as Compared
    from salf.comparing import compare as compare
    from salf.core.aggregate import LayerwiseAggregate as LayerwiseAggregate
    from salf.core.aggregate import Step as Step
    from salf.core.arrivals import Arrivals as Arrivals
    from salf.core.arrivals import Closing as Closing
    from salf.core.deadline import Backpropagation as Backpropagation
    from salf.core.deadline import Partial as Partial
    from salf.core.layers import Layer as Layer
    from salf.core.layers import Layers as Layers
    from salf.core.layers import backward_to as backward_to
    from salf.core.rows import Row as Row
    from salf.core.rules import Done as Done
    from salf.core.rules import LocalRule as LocalRule
    from salf.core.rules import LocalStep as LocalStep
    from salf.data import DataSet as DataSet
    from salf.data import Samples as Samples
    from salf.data import from_tensors as from_tensors
    from salf.data import load as load
    from salf.methods import METHODS as METHODS
    from salf.methods import Method as Method
    from salf.methods import method as method
    from salf.planning import DeadlinePlan as DeadlinePlan
    from salf.planning import plan as plan
    from salf.problem import Problem as Problem
    from salf.runs.config import Config as Config
    from salf.runs.own import train as train
    from salf.runs.presets import PRESETS as PRESETS
    from salf.runs.run import Result as Result
    from salf.runs.run import run as run
    from salf.runs.training import History as History
    from salf.runs.training import StopTraining as StopTraining
    from salf.simulation import Simulation as Simulation
    from salf.worlds.base import World as World
    from salf.worlds.fleet.devices import Fleet as Fleet

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
    "salf.planning": ("DeadlinePlan", "plan"),
    "salf.problem": ("Problem",),
    "salf.core.rows": ("Row",),
    "salf.simulation": ("Simulation",),
    "salf.worlds.base": ("World",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'salf' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
