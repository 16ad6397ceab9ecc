"""What every item of the reproduction is: work to do, and what came out of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from typing import Any, ClassVar

from salf.experiments.config import Config
from salf.experiments.pool import Progress
from salf.experiments.run import Result
from salf.report.page import Block
from salf.report.style import Spec
from salf.reproduction.presets import Preset
from salf.reproduction.verdicts import Finding

Json = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """Something other than a run: a function of its arguments, which are what it is known by.

    `function` is at the top of a module, takes the arguments and a `Progress`, and returns what
    JSON can hold.
    """

    name: str
    function: Callable[..., Json]
    arguments: Mapping[str, Any]
    work: float = 1.0  # about so many seconds

    def __call__(self, progress: Progress) -> Json:
        """Measure."""
        return self.function(**self.arguments, progress=progress)


Task = Config | Measurement


def label(task: Task) -> str:
    """A name for a task that no other task has, fit for a file."""
    if isinstance(task, Config):
        about = f"{task.model}-{task.method}-{task.average}-{task.stragglers:.3g}-{task.seed}"
        known_by = task.to_toml()
    else:
        # Another version of salf may measure the same otherwise.
        about = task.name
        known_by = f"{version('salf')} {sorted(task.arguments.items())!r}"
    return f"{about.replace(':', '.')}-{sha256(known_by.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Found:
    """What tasks gave, looked up by task. A run that diverged gave nothing."""

    results: Mapping[str, Any]

    def run(self, config: Config) -> Result | None:
        """A run, if it came to its end."""
        return self.results.get(label(config))

    def measured(self, measurement: Measurement) -> Json:
        """What a measurement gave."""
        found: Json = self.results[label(measurement)]
        return found

    def accuracies(self, configs: Sequence[Config]) -> list[float] | None:
        """The test accuracies of some seeds, or None unless all of them have one."""
        runs = [self.run(config) for config in configs]
        found = [run.history.test_accuracy for run in runs if run is not None]
        known = [value for value in found if value is not None]
        return known if len(known) == len(configs) else None


# A figure that was measured once for a folder, and is the same there ever after.
Remember = Callable[[Measurement], Json]


@dataclass(frozen=True)
class Outcome:
    """An item as people get it: a CSV, a figure, verdicts, and what else there is to say."""

    rows: Sequence[Mapping[str, Any]]  # of the CSV
    figure: Spec
    description: str  # of the figure, for those who cannot see it
    caption: str
    findings: Sequence[Finding]
    intro: str = ""  # what was run, in a sentence or two
    blocks: Sequence[Block] = field(default_factory=tuple)  # tables and the like, after the figure


class Item(ABC):
    """One table, figure, lemma or theorem of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Task]:
        """All the work there is to do, in an order that makes sense."""

    @abstractmethod
    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """Put together what the tasks gave."""
