"""`salf compare`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from salf.cli.options import (
    ConfigSource,
    GivenSettings,
    Options,
    Workers,
    lists_of,
    option,
    parse_list,
    parse_options,
    settings_of,
)
from salf.cli.terminal import INTERRUPTED, as_options, can_draw, results, say, tell
from salf.runs.config import Config
from salf.runs.presets import simulated

if TYPE_CHECKING:
    from salf.comparing import Compared


@settings_of(Config, without=("method", "seed", "threads"), several=True)
def compare(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    methods: Annotated[
        str | None,
        option(
            "--methods",
            help="Comma-separated; by default fedavg,drop and the config's. With a fleet, "
            "salf+equal-time is salf with --batches equal-time.",
        ),
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Number of seeds (3): 0, 1, 2.", min=1)] = 3,
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
    """Compare methods and settings, and print one table: mean and spread over the seeds.

    Give a setting several values to compare them, separated by commas or by repeating the option;
    every combination is run. step:0.1,50,0.5 is one learning rate.

    Examples:

        salf compare mnist-mlp --methods fedavg,drop,salf --stragglers 0.3,0.9 --seeds 3

        salf compare mnist-cnn --split iid,dirichlet:0.1 --average reached,all --out cmp

        salf compare digits-mlp --methods salf --lr 0.03,0.1,0.3 --momentum 0,0.5

        salf compare --data digits --methods fedavg,salf,mymethods:Halves

        salf compare mnist-mlp --fleet phones --deadline 60ms --seconds 30 \\
            --batches equal,equal-time --out phones    (accuracy over simulated seconds)
    """
    from salf.comparing import Sweep
    from salf.report.comparison import print_tables, write_report
    from salf.report.extra import check_extra

    base = simulated(source)
    asked = lists_of(settings)
    asked |= {"method": parse_list(methods)} if methods else {}
    asked |= {"options": parse_options(options)} if options else {}
    drawn = out is not None and can_draw(check_extra)
    compared = Sweep.of(base, asked, seeds, target).run(out, workers, report=say)
    if compared.results:
        print_tables(compared, results)
    if out is not None and drawn and compared.results:
        for path in write_report(compared, out, command=sys.argv[1:]):
            tell(f"wrote {path}")
    end(compared)


def end(*comparisons: "Compared") -> None:
    """Say what diverged; then the exit code is 2."""
    if any(each.interrupted for each in comparisons):
        raise typer.Exit(INTERRUPTED)
    failures = {name: why for each in comparisons for name, why in each.failures.items()}
    for name, reason in failures.items():
        say(f"salf: {name} failed: {as_options(reason)}")
    if failures:
        raise typer.Exit(2)
