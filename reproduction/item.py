"""An item of the reproduction: the work it needs, and what is made of the results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from reproduction.sizes import Size
from reproduction.verdicts import Finding
from salf.common.figures import Figure
from salf.report.page import PageBlock
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.training import OnPart

Json = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """Work other than a run: a function of its arguments, by which it is identified.

    `function` is at the top of a module, takes the arguments and a `OnPart`, and returns what
    JSON can hold.
    """

    name: str
    function: Callable[..., Json]
    arguments: Mapping[str, Any]
    work: float = 1.0  # in seconds, roughly

    def __call__(self, progress: OnPart) -> Json:
        """Measure."""
        return self.function(**self.arguments, progress=progress)


ItemTask = Config | Measurement


def label(task: ItemTask) -> str:
    """A unique name for a task, usable as a file name."""
    if isinstance(task, Config):
        about = f"{task.model}-{task.method}-{task.average}-{task.stragglers:.3g}-{task.seed}"
        known_by = task.to_toml()
    else:
        # Another version of salf may measure it differently.
        about = task.name
        known_by = f"{version('salf')} {sorted(task.arguments.items())!r}"
    return f"{about.replace(':', '.')}-{sha256(known_by.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Found:
    """The results of tasks, by task. A run that diverged has none."""

    results: Mapping[str, Any]

    def run(self, config: Config) -> Result | None:
        """The result of a run; None if it diverged."""
        return self.results.get(label(config))

    def measured(self, measurement: Measurement) -> Json:
        """The result of a measurement."""
        found: Json = self.results[label(measurement)]
        return found

    def accuracies(self, configs: Sequence[Config]) -> list[float] | None:
        """The test accuracies of some seeds, or None unless all of them have one."""
        runs = [self.run(config) for config in configs]
        found = [run.history.test_accuracy for run in runs if run is not None]
        known = [value for value in found if value is not None]
        return known if len(known) == len(configs) else None


@dataclass(frozen=True)
class Outcome:
    """An item as people see it: a CSV, a figure, verdicts, text and tables."""

    rows: Sequence[Mapping[str, Any]]  # of the CSV
    figure: Figure
    description: str  # of the figure, for those who cannot see it
    caption: str
    findings: Sequence[Finding]
    intro: str = ""  # what was run, in a sentence or two
    blocks: Sequence[PageBlock] = field(default_factory=tuple)  # after the figure


class Item(ABC):
    """One table, figure, lemma or theorem of the paper."""

    name: str
    title: str

    @abstractmethod
    def tasks(self, size: Size) -> Sequence[ItemTask]:
        """All the work to do. Lists it only."""

    @abstractmethod
    def outcome(self, size: Size, found: Found) -> Outcome:
        """Put together what the tasks gave."""


class Trained(Item):
    """An item made of training runs."""

    @abstractmethod
    def configs(self, size: Size) -> Mapping[Any, Sequence[Config]]:
        """The runs of each case, one per seed."""

    def tasks(self, size: Size) -> Sequence[ItemTask]:
        """The runs of all cases."""
        return [config for seeds in self.configs(size).values() for config in seeds]
