"""Comparisons made up by hand, so that no test has to train."""

from collections.abc import Sequence
from typing import Any

from salf.core.rows import Row
from salf.runs.compare import Case, Comparison
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.training import History

BASE = Config(users=4, fleet="phones", deadline=0.065, seconds=40.0, rounds=0)


def result(
    accuracies: Sequence[float | None] = (0.5, None, 0.7),
    test_accuracy: float | None = 0.8,
    reached: tuple[int, ...] = (2, 3, 4),
    layers: Sequence[str] = ("fc1", "fc2", "fc3"),
    **summary: Any,
) -> Result:
    rows = tuple(
        Row(t, 1.0 / t, reached, accuracy, float(t)) for t, accuracy in enumerate(accuracies, 1)
    )
    found = {
        "test_accuracy": test_accuracy,
        "layers": list(layers),
        "data": "nowhere",
        "versions": {"salf": "0.1.0", "torch": "2.13.0"},
        **summary,
    }
    measured = {} if test_accuracy is None else {"accuracy": test_accuracy}
    return Result(Config(), History(rows, measured), found)


def comparison(
    tests: dict[Case, Sequence[float | None]], base: Config | None = None, **settings: Any
) -> Comparison:
    """One result per case and test accuracy."""
    results = {
        case: [result(test_accuracy=value, **settings) for value in values]
        for case, values in tests.items()
    }
    return Comparison(base or Config(users=5, rounds=3), results)


def case(
    method: str, stragglers: float = 0.9, average: str = "reached", split: str = "iid", **more: Any
) -> Case:
    return Case(method, average, split, stragglers, **more)


def timed(
    method: str,
    accuracies: Sequence[float],
    test: float,
    slowest: float = 0.5,
    seed: int = 0,
    every: float = 10.0,
    batches: str = "equal",
    **more: Any,
) -> Result:
    """A run on a fleet that is evaluated after each of its rounds, which take `every` seconds."""
    rows = tuple(
        Row(t, 1 / t, (1, 2, 4), accuracy, clock=every * t, **more)
        for t, accuracy in enumerate(accuracies, 1)
    )
    measured = {"accuracy": test, "slowest_tenth_accuracy": slowest}
    config = BASE.changed(method=method, seed=seed, batches=batches)
    return Result(config, History(rows, measured), {"seed": seed, "layers": ["a", "b", "c"]})
