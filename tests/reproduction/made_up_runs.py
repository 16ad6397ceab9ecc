"""Runs made up by hand, so that no test of an item has to train."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from reproduction.item import Found, ItemTask, label
from reproduction.sizes import QUICK
from salf.core.rows import Row
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.training import History

TINY = replace(
    QUICK,
    draws=300,
    theorem_rounds=40,
    theorem_repeats=3,
    configs={"mlp": replace(QUICK.configs["mlp"], data="synthetic", batch_size=4)},
)


def silent(share):
    """A measurement's progress, of which nobody is told."""
    assert 0 <= share <= 1


def result(config: Config, accuracies: Sequence[float], losses: Sequence[float] = ()) -> Result:
    """A run with these accuracies, evaluated in every round, the last one on the test data."""
    losses = losses or [2.3 - t / len(accuracies) for t in range(len(accuracies))]
    rows = tuple(
        Row(t, loss, (1,), accuracy, float(t))
        for t, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), 1)
    )
    return Result(config, History(rows, {"accuracy": accuracies[-1]}), {})


def found(
    tasks: Sequence[ItemTask], accuracies: Callable[[Config], Sequence[float] | None]
) -> Found:
    """What these tasks gave; a run without accuracies diverged."""
    runs = {label(task): task for task in tasks if isinstance(task, Config)}
    given = {name: accuracies(config) for name, config in runs.items()}
    return Found(
        {
            name: result(runs[name], numbers)
            for name, numbers in given.items()
            if numbers is not None
        }
    )
