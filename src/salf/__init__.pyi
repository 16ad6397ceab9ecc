"""The public names of salf: `__init__.py` reads where each one lives from these lines."""

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
from salf.data import (
    DataSet as DataSet,
)
from salf.data import (
    Samples as Samples,
)
from salf.data import (
    from_tensors as from_tensors,
)
from salf.data import (
    load as load,
)
from salf.methods import METHODS as METHODS
from salf.methods import Method as Method
from salf.methods import method as method
from salf.planning import Plan as Plan
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

__version__: str
