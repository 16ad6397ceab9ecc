"""The table of `salf attacks`: attacks by rules and conditions, in Markdown, and the worst case."""

from statistics import fmean

from salf.runs.compare import Comparison
from salf.runs.config import Config
from salf.runs.training import BACKDOOR

Column = tuple[str, float, str]  # split, ratio of stragglers, rule


def table_of(compared: Comparison) -> str:
    """Test accuracy by attack, a column for each condition and rule, and what is worst in each.

    The cost of an attack is what is lost against no attack and no rule, if that was run, or no
    attack and this rule. Seeds that diverged count 0.
    """
    seeds = max(map(len, compared.results.values()), default=0)
    found: dict[str, dict[Column, float]] = {}
    success: dict[Column, float] = {}
    for case, runs in compared.results.items():
        config = runs[0].config
        assert isinstance(config, Config)
        column = case.split, config.stragglers, str(config.robust)
        of = [run.history.test_accuracy or 0.0 for run in runs]
        found.setdefault(config.attack or "none", {})[column] = sum(of) / seeds
        if BACKDOOR in runs[0].history.test:
            success[column] = fmean(run.history.test[BACKDOOR] for run in runs)
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    names = [f"{split}, {100 * ratio:g}% stragglers, {rule}" for split, ratio, rule in columns]
    rows = [["attack", *names], ["---"] * (len(names) + 1)]
    for attack, row in found.items():
        rows.append([attack, *(f"{row.get(column, 0.0):.3f}" for column in columns)])
        if attack == "backdoor":
            rates = [f"{success[column]:.3f}" for column in columns if column in success]
            rows.append(["its success rate", *rates])
    lines, worst_of = ["| " + " | ".join(row) + " |" for row in rows], [""]
    for column, name in zip(columns, names, strict=True):
        honest = found.get("none", {})
        least = honest.get((*column[:2], "none"), honest.get(column))
        costs = {attack: row.get(column, 0.0) for attack, row in found.items()}
        if least is not None and len(costs) > 1 and column[2] != "none":
            worst = min(costs, key=costs.__getitem__)
            worst_of.append(f"- worst for {name}: {worst}, at a cost of {least - costs[worst]:.3f}")
    return "\n".join([*lines, *worst_of, ""])
