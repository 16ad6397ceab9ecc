"""A table of attacks against defences: what each costs, in the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from salf.common.files import csv_text, folder_name, write_whole
from salf.runs.config import Config
from salf.runs.federation import load_data
from salf.runs.pool import OnProgress, run_configs

RESULTS, TABLE = "attacks.csv", "attacks.md"
# Just below the live server's bound, and as large as an honest gradient.
ATTACKS = ("", "flip", "flip:1", "random", "constant", "constant:1", "large-first")
RULES = ("none", "trimmed", "median", "clip")


@dataclass(frozen=True)
class Cell:
    """One attack against one rule, with a ratio of stragglers unless there is a fleet."""

    attack: str  # empty for none
    rule: str
    stragglers: float | None = None


@dataclass(frozen=True)
class Attacks:
    """The test accuracies of every cell, one for each seed; None where training diverged."""

    base: Config
    seeds: tuple[int, ...]
    accuracies: dict[Cell, list[float | None]]

    def text(self) -> str:
        """Markdown: a table for each ratio of stragglers, the mean over seeds in each cell."""
        return "\n".join(
            self._table(ratio) for ratio in dict.fromkeys(c.stragglers for c in self.accuracies)
        )

    def _table(self, ratio: float | None) -> str:
        cells = [cell for cell in self.accuracies if cell.stragglers == ratio]
        rules = list(dict.fromkeys(cell.rule for cell in cells))
        title = self.base.fleet if ratio is None else f"{ratio:.0%} stragglers"
        lines = [
            f"| {title} | {' | '.join(rules)} |",
            "|---" * (len(rules) + 1) + "|",
        ]
        for attack in dict.fromkeys(cell.attack for cell in cells):
            row = [_shown(self.accuracies[Cell(attack, rule, ratio)]) for rule in rules]
            lines.append(f"| {attack or 'no attack'} | {' | '.join(row)} |")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """A line for each run."""
        return csv_text(
            [
                ["stragglers", "attack", "robust", "seed", "test_accuracy"],
                *(
                    [cell.stragglers, cell.attack, cell.rule, seed, accuracy]
                    for cell, found in self.accuracies.items()
                    for seed, accuracy in zip(self.seeds, found, strict=True)
                ),
            ]
        )


def _shown(accuracies: Sequence[float | None]) -> str:
    if any(accuracy is None for accuracy in accuracies):
        return "diverged"
    return f"{mean(each for each in accuracies if each is not None):.3f}"


def try_attacks(
    base: Config,
    attacks: Sequence[str] = ATTACKS,
    rules: Sequence[str] = RULES,
    stragglers: Sequence[float] = (0.5, 1.0),
    seeds: Sequence[int] = (0,),
    out: Path | None = None,
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    report: Callable[[str], None] | None = None,
) -> Attacks:
    """Run every attack against every rule, with every ratio of stragglers or with a fleet.

    With `out`, each run has its folder there and the same call again goes on where it stopped.
    """
    ratios = [None] if base.fleet else stragglers
    cells = [Cell(*each) for each in product(attacks, rules, ratios)]
    jobs = {
        (cell, seed): base.changed(
            attack=cell.attack,
            robust=cell.rule,
            stragglers=base.stragglers if cell.stragglers is None else cell.stragglers,
            seed=seed,
            threads=base.threads or 1,
        )
        for cell in cells
        for seed in seeds
    }
    load_data(base, report)
    configs = {_label(*key): config for key, config in jobs.items()}
    done = run_configs(configs, out, workers, on_progress)

    def accuracy(cell: Cell, seed: int) -> float | None:
        result = done.results.get(_label(cell, seed))
        return None if result is None else result.history.test_accuracy

    accuracies = {cell: [accuracy(cell, seed) for seed in seeds] for cell in cells}
    found = Attacks(base, tuple(seeds), accuracies)
    if out is not None:
        write_whole(out / RESULTS, found.csv())
        write_whole(out / TABLE, found.text())
    return found


def _label(cell: Cell, seed: int) -> str:
    ratio = "fleet" if cell.stragglers is None else f"{cell.stragglers:g}"
    return folder_name(cell.attack or "honest", cell.rule, ratio, seed)
