"""`salf bench`."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from salf.bench.suite import OWN, Entrant, Suite, load
from salf.cli.options import (
    GivenSettings,
    Nodes,
    Workers,
    option,
    parse_list,
    settings_of,
    workers_of,
)
from salf.cli.terminal import answer, results, say, wrote
from salf.common.bars import Bar
from salf.common.errors import SalfError
from salf.runs.config import Config


@settings_of(Config, only=(*OWN, "options"))
def bench(
    settings: GivenSettings,
    suite: Annotated[
        str,
        option(
            "--suite",
            help="digits (a minute or two per method) | core (MNIST and Fashion-MNIST; the "
            "default) | full (also CIFAR-10) | FILE.toml",
        ),
    ] = "core",
    methods: Annotated[
        str | None,
        option(
            "--method",
            help="What to run, comma-separated: names, package.module:Name, salf+equal-time, or "
            "all for every method of the table. Without it, the published results are shown.",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        option(
            "--scenario",
            help="Scenarios to run, comma-separated: mixture, phones, phones-dirichlet, "
            "slow-classes, day-night, sessions, by-labels.",
        ),
    ] = None,
    workers: Workers = None,
    cluster: Nodes = None,
    out: Annotated[
        Path,
        option(
            "--out",
            help="Folder for rows, results.csv and a page (bench); continues a bench begun there.",
        ),
    ] = Path("bench"),
) -> None:
    """Compare methods in the straggler benchmark: the same scenarios, budget and tuning for all.

    Each method runs in every scenario with four learning rates and two seeds, then with the best
    rate and five other seeds. The table shows it beside the published results of all methods, with
    ranks. You can interrupt the command at any time and repeat it to continue.

    Examples:

        salf bench    (the published results)

        salf bench --method mypkg:Mine    (adds your row)

        salf bench --suite digits --method mypkg:Mine --option rate=0.5    (in a minute or two)

        salf bench --suite digits --method all    (reproduces all results)
    """
    from salf.bench import results as kept
    from salf.bench.bench import bench as run
    from salf.report.bench import Standings

    chosen = load(suite).only(parse_list(scenario))
    entrants = _entrants(chosen, methods, settings)
    published = {} if suite.endswith(".toml") else kept.published(chosen, say)
    rows = [*published.values()]
    if entrants:
        with workers_of(workers, cluster) as given, Bar("benchmark") as bar:
            rows += run(
                chosen,
                entrants,
                out,
                published,
                workers=given,
                watch=lambda what: partial(bar.update, description=what),
                report=say,
            )
    if not (rows := kept.shown(chosen, rows)):
        raise SalfError(
            f"no results of the suite {suite} are published yet: choose methods with --method, "
            "or run all with --method all."
        )
    standings = Standings(chosen, rows, [each.name for each in entrants])
    standings.print(results)
    wrote(*standings.write(out, sys.argv[1:]))
    answer([*kept.records(chosen, rows)])


def _entrants(chosen: Suite, methods: str | None, settings: GivenSettings) -> list[Entrant]:
    """The methods that were named, with the options and settings that were given."""
    own, options = bool(settings), settings.pop("options", {})
    if own and methods in (None, "all"):
        raise SalfError("options and settings belong to a method: choose one with --method.")
    if methods == "all":
        return list(chosen.entrants)
    found = [chosen.entrant(name) for name in dict.fromkeys(parse_list(methods))]
    more = {"given_name": ""} if own else {}
    return [
        replace(
            each,
            options={**each.options, **options},
            settings={**each.settings, **settings},
            **more,
        )
        for each in found
    ]
