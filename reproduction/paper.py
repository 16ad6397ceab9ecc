"""The paper's numbers, as data."""

from collections.abc import Mapping

# Table I [tbl:summerizing_architectures]: test accuracy on MNIST by model, method and ratio of
# stragglers. "Vanilla FL" has no deadline, so no ratio; HeteroFL was left out for the MLP.
VANILLA: Mapping[str, float] = {"mlp": 0.90, "cnn": 0.95}
TABLE_1: Mapping[tuple[str, str], Mapping[float, float]] = {
    ("mlp", "drop"): {0.3: 0.87, 0.5: 0.84, 0.7: 0.77, 0.9: 0.49},
    ("mlp", "salf"): {0.3: 0.88, 0.5: 0.85, 0.7: 0.85, 0.9: 0.81},
    ("mlp", "asyncfl"): {0.3: 0.86, 0.5: 0.84, 0.7: 0.82, 0.9: 0.73},
    ("cnn", "drop"): {0.3: 0.93, 0.5: 0.90, 0.7: 0.83, 0.9: 0.28},
    ("cnn", "salf"): {0.3: 0.94, 0.5: 0.93, 0.7: 0.92, 0.9: 0.90},
    ("cnn", "heterofl"): {0.3: 0.88, 0.5: 0.84, 0.7: 0.61, 0.9: 0.43},
    ("cnn", "asyncfl"): {0.3: 0.94, 0.5: 0.92, 0.7: 0.91, 0.9: 0.86},
}


def published(model: str, method: str, ratio: float) -> float | None:
    """A cell of Table I; None where the paper has none."""
    if method == "fedavg":
        return VANILLA.get(model)
    return TABLE_1.get((model, method), {}).get(ratio)
