"""`salf compare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salf.cli.options import (
    Options,
    Settings,
    Source,
    Workers,
    option,
    parse_list,
    parse_options,
    parse_ratio,
    refuse_with_fleet,
    settings_of,
)
from salf.cli.terminal import Downloads, can_draw, progress_bar, results, say, tell
from salf.runs.config import Config
from salf.runs.presets import simulated

if TYPE_CHECKING:
    from salf.runs.compare import Case, Comparison

_COMPARED = ("method", "stragglers", "split", "average", "batches", "seed", "threads")


@settings_of(Config, without=_COMPARED)
def compare(
    settings: Settings,
    source: Source = "mnist-mlp",
    methods: Annotated[
        str | None,
        option(
            "--methods",
            help="Comma-separated; by default fedavg,drop and the config's. With a fleet, "
            "salf+equal-time is salf with --batches equal-time.",
        ),
    ] = None,
    stragglers: Annotated[
        str | None, option("--stragglers", help="Comma-separated ratios, such as 0.3,0.9.")
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Number of seeds (3): 0, 1, 2.", min=1)] = 3,
    split: Annotated[
        str | None, option("--split", help="Comma-separated, such as iid,dirichlet:0.1.")
    ] = None,
    average: Annotated[
        str | None, option("--average", help="reached, all, or reached,all for both.")
    ] = None,
    batches: Annotated[
        str | None,
        option("--batches", help="With a fleet: equal, equal-time, or equal,equal-time for both."),
    ] = None,
    target: Annotated[
        float | None,
        option(
            "--target",
            help="With a fleet, the accuracy on held-out data to reach; by default 95 % of waiting "
            "FedAvg's at the end.",
        ),
    ] = None,
    options: Options = None,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="Folder for results.csv, a figure and a page; continues a comparison begun there.",
        ),
    ] = None,
) -> None:
    """Compare several methods and print one table: mean and spread over the seeds.

    Examples:

        salf compare mnist-mlp --methods fedavg,drop,salf --stragglers 0.3,0.9 --seeds 3

        salf compare mnist-cnn --split iid,dirichlet:0.1 --average reached,all --out cmp

        salf compare --data digits --methods fedavg,salf,mymethods:Halves

        salf compare mnist-mlp --fleet phones --deadline 800ms --seconds 400 \\
            --batches equal,equal-time --out phones    (accuracy over simulated seconds)
    """
    from salf.report.comparison import print_tables, write_report
    from salf.report.extra import check_extra
    from salf.runs.compare import cases

    base = simulated(source).changed(**settings)
    if base.fleet:
        refuse_with_fleet([*settings, *(["stragglers"] if stragglers else [])])
    ratios = [parse_ratio(text) for text in parse_list(stragglers)]
    given = parse_options(options)
    drawn = out is not None and can_draw(check_extra)
    wanted = cases(
        parse_list(methods) or list(dict.fromkeys(["fedavg", "drop", base.method])),
        parse_list(average) or [base.average],
        parse_list(split) or [base.split],
        ratios or [base.stragglers],
        parse_list(batches) or [base.batches],
        bool(base.fleet),
    )
    comparison = run_cases(base, wanted, seeds, out, options=given, goal=target, workers=workers)
    print_tables(comparison, results)
    if out is not None and drawn:
        for path in write_report(comparison, out, command=sys.argv[1:]):
            tell(f"wrote {path}")
    end(comparison)


def run_cases(
    base: Config, wanted: "Sequence[Case]", seeds: int, folder: Path | None, **more: Any
) -> "Comparison":
    """Run a comparison, with a bar while it lasts."""
    from salf.runs.compare import compare as run_all

    by_clock = base.seconds is not None
    with progress_bar(counted=not by_clock) as progress:
        task = progress.add_task("simulated seconds" if by_clock else "rounds", total=None)
        return run_all(
            base,
            wanted,
            range(seeds),
            folder,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            report=Downloads(),
            **more,
        )


def end(*comparisons: "Comparison") -> None:
    """Say what diverged; then the exit code is 2."""
    failures = {name: why for each in comparisons for name, why in each.failures.items()}
    for name, reason in failures.items():
        say(f"salf: {name} failed: {reason}")
    if failures:
        raise typer.Exit(2)
