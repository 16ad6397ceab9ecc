"""Comparisons made up by hand, so that no test has to train."""

from collections.abc import Sequence
from typing import Any

from salf.core.rows import Row
from salf.runs.compare import Case, Comparison
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.training import History


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
    return Result(
        Config(), History(rows, {} if test_accuracy is None else {"accuracy": test_accuracy}), found
    )


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
    method: str, stragglers: float = 0.9, average: str = "reached", split: str = "iid"
) -> Case:
    return Case(method, average, split, stragglers)
