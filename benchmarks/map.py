"""Which method wins where: compute time to link time, spread of speeds and label skew.

    OMP_NUM_THREADS=1 python benchmarks/map.py [--out FOLDER] [--figure docs/figures/map.svg]

30 phones (the class of `phones`) train the paper's MLP on MNIST. In each cell their speeds are
log-normal, and all have one link, such that the median phone computes `ratio` times as long as it
downloads and uploads. Every method has the time of 150 rounds of the median phone. Its deadline
(by which 10, 40, 70 or 95 % of the phones are done) and its learning rate are the best on
held-out data with a seed that is not judged; accuracies are those on the test data with three
others. Drop and FedAvg have several local steps, too, or SALF might win by these alone. A method
ties with the best if the 95 % interval of their difference, paired by seed, has 0. Results are kept
in the folder: repeat the command to continue.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from salf.common.bars import Bar
from salf.common.errors import NoRoundInTime
from salf.common.files import write_whole
from salf.common.intervals import interval
from salf.report import names
from salf.report.tables import Table
from salf.runs.config import Config
from salf.runs.estimates import FleetLaw
from salf.runs.federation import fleet_world, problem_of
from salf.runs.pool import Finished, run_all, run_job
from salf.runs.run import Result
from salf.runs.training import OnPart
from salf.worlds.fleet.devices import Fleet, drawn_normal
from salf.worlds.fleet.named import PHONE

RATIOS = (0.1, 1.0, 10.0)  # compute time to link time
SPREADS = (0.0, 0.8, 1.6)  # sigma of the logarithm of speed
SPLITS = ("iid", "dirichlet:0.1")
SHARES, RATES = (0.1, 0.4, 0.7, 0.95), (0.05, 0.1, 0.2)
ROUNDS, TUNED, JUDGED = 150, 100, (0, 1, 2)
METHODS = {  # by name: settings
    "SALF": {"method": "salf"},
    "SALF, 4 local steps": {"method": "salf", "local_steps": 4},
    "SALF-Recall": {"method": "salf-recall", "batches": "equal"},
    "Drop": {"method": "drop"},
    "Drop, 4 local steps": {"method": "drop", "local_steps": 4},
    "FedAvg": {"method": "fedavg"},
    "FedAvg, 4 local steps": {"method": "fedavg", "local_steps": 4},
}
COMPUTE, BYTES = 6.2e-3, 103_272.0  # seconds of the median phone's step; bytes of the MLP


def devices(users: int, seed: int, sigma: float = 0.8, ratio: float = 1.0) -> Fleet:
    """Phones of this spread of speeds with one link: the fleet of a cell."""
    (z,) = drawn_normal(seed, users, 1)
    rate = 2 * BYTES * ratio / COMPUTE
    return Fleet.of(np.exp(sigma * z), jitter=0.06, up=rate, down=rate, counted=PHONE)


class Cell(NamedTuple):
    ratio: float
    spread: float
    split: str

    @property
    def config(self) -> Config:
        fleet = f"map:devices:sigma={self.spread},ratio={self.ratio}"
        clock = {"seconds": self.seconds, "eval_seconds": self.seconds / 10}
        return Config(model="mlp", fleet=fleet, split=self.split, threads=1, **clock)

    @property
    def seconds(self) -> float:
        return ROUNDS * COMPUTE * (1 + 1 / self.ratio)

    def tried(self, method: str) -> list[dict[str, Any]]:
        """The settings of a method that are tuned."""
        own, found = METHODS[method], self.deadlines(METHODS[method].get("local_steps", 1))
        deadlines = [None] if own["method"] == "fedavg" else found
        return [{**own, "deadline": T, "lr": lr} for T, lr in product(deadlines, RATES)]

    def deadlines(self, steps: int) -> list[float]:
        config = self.config.changed(local_steps=steps, method="fedavg")
        world, _, _ = fleet_world(config, problem(self.split), config.make_method())
        law = FleetLaw(world.timing, config.users, self.seconds)
        return [law.deadline_for(share) for share in SHARES]


@cache
def problem(split: str) -> Any:
    return problem_of(Config(model="mlp", split=split))


class Runs:
    """Accuracies on held-out and on test data by config, kept in a file with a line for each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.found = folder / "accuracies.jsonl", dict[str, list[float]]()
        if self.file.exists():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                self.found |= json.loads(line)

    def do(self, what: str, configs: Sequence[Config]) -> None:
        jobs = {key(each): run_job(each, None, 1.0) for each in configs}
        jobs = {name: replace(job, do=partial(in_time, job.do)) for name, job in jobs.items()}
        jobs = {name: job for name, job in jobs.items() if name not in self.found}

        def keep(name: str, done: Finished) -> None:
            result = done.results.get(name)
            history = None if result is None else result.history
            self.found[name] = (
                [0.0, 0.0]
                if history is None
                else [history.curve[-1][1] if history.curve else 0.0, history.test_accuracy]
            )
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({name: self.found[name]}) + "\n")

        with Bar(what, counted=True) as bar:
            run_all(jobs, None, bar.update, keep)

    def held_out(self, config: Config) -> float:
        return self.found[key(config)][0]

    def tested(self, config: Config) -> float:
        return self.found[key(config)][1]


def in_time(do: Callable[[OnPart], Result], progress: OnPart) -> Result | None:
    """A run; none if not even one of its rounds ends in time."""
    try:
        return do(progress)
    except NoRoundInTime:
        return None


def key(config: Config) -> str:
    chosen = ("fleet", "split", "method", "local_steps", "deadline", "lr", "seed")
    return " ".join(str(getattr(config, name)) for name in chosen)


def measure(runs: Runs) -> list[dict[str, Any]]:
    """A record of every cell: each method's accuracies, seed by seed."""
    cells = [Cell(*each) for each in product(RATIOS, SPREADS, SPLITS)]
    tuned = {
        (cell, method): [cell.config.changed(**each, seed=TUNED) for each in cell.tried(method)]
        for cell in cells
        for method in METHODS
    }
    runs.do("tuning", [config for configs in tuned.values() for config in configs])
    best = {place: max(configs, key=runs.held_out) for place, configs in tuned.items()}
    judged = {p: [each.changed(seed=seed) for seed in JUDGED] for p, each in best.items()}
    runs.do("judging", [config for configs in judged.values() for config in configs])
    return [
        {
            **cell._asdict(),
            "accuracies": {m: [runs.tested(each) for each in judged[cell, m]] for m in METHODS},
            "chosen": {m: {"deadline": best[cell, m].deadline, "lr": best[cell, m].lr}
                       for m in METHODS},
        }
        for cell in cells
    ]  # fmt: skip


def apart(accuracies: dict[str, list[float]], one: str, other: str) -> tuple[float, bool]:
    """The difference of two methods in points, and whether it may be chance."""
    pairs = zip(accuracies[one], accuracies[other], strict=True)
    found = interval([100 * (a - b) for a, b in pairs])
    return found.mean, found.low <= 0 <= found.high


class Shown(NamedTuple):
    """What table and figure say of a cell."""

    first: list[str]  # the best, and those that tie with it
    gain: float  # of the best SALF over the best of the others, in points
    tie: bool

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Shown":
        found = record["accuracies"]
        ranked = sorted(found, key=lambda method: -sum(found[method]))
        first = [m for m in ranked if m == ranked[0] or apart(found, ranked[0], m)[1]]
        rivals = [m for m in ranked if not m.startswith("SALF")]
        ours = next(m for m in ranked if m.startswith("SALF"))
        return cls(first, *apart(found, ours, rivals[0]))

    @property
    def told(self) -> str:
        return f"{self.gain:+.1f}".replace("-", "−") + (" (tie)" if self.tie else "")


def table(records: Sequence[dict[str, Any]]) -> str:
    """A row for each cell: every method's mean accuracy, and the best SALF less the best other."""
    columns = ["compute : link", "spread", "labels", *METHODS, "SALF less others"]
    rows = []
    for record in records:
        means = [f"{sum(each) / len(each):.3f}" for each in record["accuracies"].values()]
        place = [f"{record['ratio']:g}", f"{record['spread']:g}", names.split(record["split"])]
        rows.append([*place, *means, Shown.of(record).told])
    return Table(columns, rows).markdown()


WIDE, TALL, LEFT, TOP = 128, 84, 66, 64  # pixels: of a cell, and around each panel


def figure(records: Sequence[dict[str, Any]]) -> str:
    """A panel for each split: the best SALF less the best other, and who is first."""
    step = LEFT + WIDE * len(RATIOS)
    parts = [_text(8, 20, "Points by which the best SALF leads the best of Drop and FedAvg", 14)]
    for panel, split in enumerate(SPLITS):
        left = LEFT + panel * step
        parts.append(_text(left, TOP - 14, f"labels: {names.split(split)}", 12))
        for column, ratio in enumerate(RATIOS):
            x = left + (column + 0.5) * WIDE
            parts.append(_text(x, TOP + TALL * len(SPREADS) + 18, f"{ratio:g}", 12, "middle"))
            for row, spread in enumerate(reversed(SPREADS)):
                y = TOP + row * TALL
                wanted = ratio, spread, split
                found = next(r for r in records if tuple(r[n] for n in Cell._fields) == wanted)
                shown = Shown.of(found)
                everybody = len(shown.first) == len(METHODS)
                first = ["all tie"] if everybody else _short(shown.first)
                parts.append(
                    f'<rect x="{x - WIDE / 2 + 1}" y="{y + 1}" width="{WIDE - 2}" '
                    f'height="{TALL - 2}" fill="{_colour(shown)}"/>'
                )
                parts.append(_text(x, y + 22, shown.told, 14, "middle"))
                parts += [_text(x, y + 40 + 12 * n, w, 9, "middle") for n, w in enumerate(first)]
                if column == 0:
                    parts.append(_text(left - 8, y + TALL / 2, f"σ = {spread:g}", 12, "end"))
        middle, below = left + step / 2 - LEFT / 2, TOP + TALL * len(SPREADS) + 36
        parts.append(_text(middle, below, "compute time : link time", 12, "middle"))
    wide, tall = len(SPLITS) * step + 12, TOP + TALL * len(SPREADS) + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        f'viewBox="0 0 {wide} {tall}" font-family="Helvetica, Arial, sans-serif">'
        f'<rect width="{wide}" height="{tall}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _short(first: list[str]) -> list[str]:
    return [*first[:3], *([f"and {len(first) - 3} more"] if len(first) > 3 else [])]


def _colour(shown: Shown) -> str:
    """White for a tie; orange where SALF leads, blue where it is behind, full at 10 points."""
    part = 0.0 if shown.tie else min(1.0, abs(shown.gain) / 10)
    full = (245, 158, 92) if shown.gain > 0 else (110, 170, 220)
    return "#" + "".join(f"{round(245 + part * (end - 245)):02x}" for end in full)


def _text(x: float, y: float, words: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("map"), help="folder of the results")
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/map.svg"))
    arguments = parser.parse_args()
    records = measure(Runs(arguments.out))
    (arguments.out / "map.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    write_whole(arguments.figure, figure(records))
    print(table(records))


if __name__ == "__main__":
    main()
