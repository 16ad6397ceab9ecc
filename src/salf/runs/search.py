"""Deadlines by simulation: the accuracy that short runs with each of them come to."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import inf, sqrt
from pathlib import Path

import numpy as np
import torch

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.runs.config import Config
from salf.runs.fleet_law import FleetLaw
from salf.runs.pool import Finished, Job
from salf.runs.run import complete
from salf.runs.training import Training
from salf.runs.watched import OnPart
from salf.theory.planning import first_time

Make = Callable[[Config], Training]

LEAST_REACH, MOST_REACH = 0.1, 0.97  # the search goes from the one to the other
FEWEST_ROUNDS = 5  # of a run of the search


@dataclass(frozen=True)
class Tried:
    """The accuracies of runs with one deadline, one per seed, None where training diverged."""

    deadline: float  # 0 for the schedule
    accuracies: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [each for each in self.accuracies if each is not None]

    @property
    def mean(self) -> float:
        """The mean accuracy; 0 if all runs diverged."""
        return float(np.mean(self.known)) if self.known else 0.0


def lost(best: Tried, other: Tried) -> tuple[float, float]:
    """How much less accurate another deadline is, seed by seed: the mean and its standard error."""
    pairs = zip(best.accuracies, other.accuracies, strict=True)
    off = [a - b for a, b in pairs if a is not None and b is not None]
    if not off:
        return best.mean - other.mean, inf
    return float(np.mean(off)), float(np.std(off, ddof=1) / sqrt(len(off))) if len(off) > 1 else 0.0


def search_grid(law: FleetLaw, budget: float, points: int) -> list[float]:
    """Deadlines from one that few users reach anything by to one that nearly all finish by."""

    def longer(reach: float) -> float:
        return first_time(lambda T: law.at(T)[1] >= reach, budget)

    last = min(longer(MOST_REACH), budget / FEWEST_ROUNDS)
    first = min(longer(LEAST_REACH), last / 2)
    return [float(f"{each:.3g}") for each in np.geomspace(first, last, points)]


def search(
    trials: Mapping[float, tuple[Config, float]],
    seeds: int,
    measure: Callable[[Config, OnPart], float],
    run: Callable[[Mapping[str, Job]], Finished],
) -> list[Tried]:
    """Run the trial of every deadline, a config and its work, with every seed."""
    jobs = {
        f"{T}-{seed}": Job(partial(measure, config.changed(seed=seed)), work)
        for T, (config, work) in trials.items()
        for seed in range(seeds)
    }
    found = run(jobs).results
    return [Tried(T, tuple(found.get(f"{T}-{seed}") for seed in range(seeds))) for T in trials]


def accuracy_at_end(make: Make, keep: Path | None, config: Config, progress: OnPart) -> float:
    """Train until the budget is spent, and measure the accuracy on held-out data.

    A result in the folder `keep` is read from there.
    """
    file = None if keep is None else keep / f"{_digest(config)}.txt"
    if file is not None and file.exists():
        return float(file.read_text(encoding="utf-8"))
    assert config.seconds is not None
    torch.set_num_threads(config.threads or 1)
    training = make(config)
    for row in training.rows(0, config.seconds):
        progress((row.clock or 0.0) / config.seconds)
    problem = training.simulation.problem
    accuracy = training.evaluation.of(problem.validation or problem.test).get("accuracy")
    if accuracy is None:
        raise SalfError(
            "the search needs held-out data to compare accuracies, and there are none: use the "
            "bound alone, with seeds=0."
        )
    if file is not None:
        write_whole(file, f"{accuracy!r}\n")
    return accuracy


def _digest(config: Config) -> str:
    """A name for a run: a digest of its settings, the contents of its files, and the version."""
    table = complete(config, here=False).table()
    if "deadline" in table["files"]:
        table["deadline"] = None  # the file of a schedule has another name each time
    text = json.dumps([version("salf"), table], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
