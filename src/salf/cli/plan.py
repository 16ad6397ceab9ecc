"""`salf plan`."""

import sys
from pathlib import Path
from typing import Annotated

from salf.cli.options import (
    ConfigSource,
    GivenSettings,
    Options,
    Workers,
    option,
    settings_of,
    with_options,
)
from salf.cli.terminal import can_draw, console, results, say, tell
from salf.common.bars import Bar
from salf.runs.config import Config
from salf.runs.plan_options import PlanOptions
from salf.runs.presets import simulated

_CHOSEN = ("deadline", "rounds", "seed", "depth", "stragglers", "eval_every", "eval_seconds")


@settings_of(Config, PlanOptions, without=_CHOSEN)
def plan(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    options: Options = None,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="Folder for plan.csv, curve.csv, a figure and a page; continues a search begun "
            "there.",
        ),
    ] = None,
) -> None:
    """Choose the deadline for a fleet and a budget of simulated seconds.

    Two answers are printed, and how far they disagree: the constant T_max, the schedule T_1..T_R
    and the batch size that minimise the theorem's bound; and the deadline with the best simulated
    accuracy at the end of the budget, from a grid.

    Examples:

        salf plan digits-mlp --fleet slow-classes --seconds 200 --out plan

        salf run digits-mlp --fleet slow-classes --seconds 200 --deadline plan/plan.csv
    """
    from salf.report.extra import check_extra
    from salf.report.plan import print_plan, tables, write_plan
    from salf.report.style import write
    from salf.runs.federation import load_data, problem_of
    from salf.runs.plan import plan as make_plan
    from salf.runs.pool import run_all

    drawn = out is not None and can_draw(check_extra)
    asked = PlanOptions.taken_from(settings)
    config = with_options(simulated(source), settings, options)
    config = config.changed(threads=config.threads or 1)
    with console.status(f"looking for {config.data}"):
        load_data(config, say)  # fetched once, and what is wrong with them is said once
    with Bar("bound and search") as bar:
        keep = None if out is None else out / "search"
        planned = make_plan(
            config,
            problem_of,
            asked,
            run=lambda jobs: run_all(jobs, workers, bar.update),
            keep=keep,
        )
    print_plan(planned, results)
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the schedule, the curve and a figure.")
        return
    files = write_plan(planned, out, sys.argv[1:]) if drawn else write(tables(planned, out))
    for path in files:
        tell(f"wrote {path}")
