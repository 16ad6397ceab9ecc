"""The choice of `salf plan` beside all of a small grid, run to the end with the same seeds.

    OMP_NUM_THREADS=1 python benchmarks/regret.py [--out FOLDER] [--cases cnn,resnet,mlp]

The grid has all candidates that the plan begins with, at the config's learning rate and at twice
it (`--rates`), with none ended early; those that are best with the first seed run with all seeds.
Regret is what the plan's choice takes longer to the target than the best of the grid, mean over the
seeds; negative if the plan found better. Everything is kept in the folder: repeat the command to
continue. The table is printed as Markdown, for docs/plan.md.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from time import monotonic

from torch import Tensor, nn

from salf.common.bars import Bar
from salf.planning import plan_config
from salf.report.plan import described
from salf.report.tables import Table
from salf.runs.config import Config
from salf.runs.federation import problem_of
from salf.runs.plan import Asked, Planner
from salf.runs.pool import WorkerPool, run_job
from salf.runs.presets import PRESETS
from salf.runs.search import Candidate, Race

SEEDS = range(3)
BEST = 10  # of the grid that run with all seeds


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.norm(self.two(self.one(x).relu()))).relu()


class ResNet(nn.Module):
    """A small residual network for images of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


CASES: dict[str, tuple[str, Config, float]] = {
    "cnn": (
        "The paper's CNN on MNIST, `pis`",
        PRESETS["mnist-cnn"].changed(fleet="pis", split="dirichlet:0.1"),
        0.9,
    ),
    "resnet": (
        "A residual net on digits, `phones`",
        Config(
            data="digits", model="regret:ResNet", fleet="phones", users=20, lr=0.1,
            split="dirichlet:0.3",
        ),
        0.8,
    ),
    "mlp": (
        "The paper's MLP on MNIST, `microcontrollers`",
        PRESETS["mnist-mlp"].changed(fleet="microcontrollers", split="dirichlet:0.1"),
        0.8,
    ),
}  # fmt: skip


def case(name: str, out: Path, rates: Sequence[float]) -> list[str]:
    """A row of the table."""
    title, config, target = CASES[name]
    config = config.changed(threads=1)
    began = monotonic()
    found = plan_config(config, Asked(target, len(SEEDS)), out / name)
    print(f"{title}: the plan took {monotonic() - began:.0f} s\n{found}\n", flush=True)
    seconds = found.config.seconds
    assert seconds is not None
    planner = Planner(config, problem_of(config), Asked(target), None, None, out / name / "grid")  # type: ignore[arg-type]
    grid = [
        replace(each, lr=rate * each.lr)
        for each in planner.candidates(seconds)
        for rate in rates
        if each.lr is not None
    ]
    with Bar("grid") as bar, WorkerPool() as pool:
        race = Race(
            lambda chosen, folder: run_job(config.changed(**chosen), folder),
            lambda what, jobs: pool.do(jobs, partial(bar.update, description=what)),
            out / name / "grid" / "runs",
            target,
            found.race.interval,
        )
        race.advance(grid, seconds)
        leaders = race.ranked(grid, seconds)[:BEST]
        race.advance(leaders, seconds, SEEDS)
    best = race.ranked(leaders, seconds, SEEDS)[0]

    def mean(race: Race, each: Candidate) -> float:
        times = [race.to_target(each, seed, target) for seed in SEEDS]
        return fmean(float("inf") if time is None else time for time in times)

    ours, theirs = mean(found.race, found.best), mean(race, best)
    tried = found.race.histories
    spent = sum(history.rows[-1].clock or 0.0 for history in tried.values()) / seconds
    return [
        title,
        f"{target:g}",
        f"{described(found.best)}: {ours:.3g} s",
        f"{described(best)}: {theirs:.3g} s",
        f"{ours / theirs - 1:+.1%}".replace("-", "−"),
        f"{spent:.0f} of {len(race.histories)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("regret"), help="folder of the runs")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--rates", default="1,2", help="times the config's, comma-separated")
    arguments = parser.parse_args()
    columns = ["Case", "Target", "The plan's choice", "Best of the grid", "Regret", "Full runs"]
    rates = [float(rate) for rate in arguments.rates.split(",")]
    rows = [case(name, arguments.out, rates) for name in arguments.cases.split(",")]
    print(Table(columns, rows).markdown())


if __name__ == "__main__":
    main()
