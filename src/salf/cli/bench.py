"""`salf bench`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from salf.cli.options import (
    Options,
    Settings,
    Workers,
    option,
    parse_list,
    parse_options,
    settings_of,
)
from salf.cli.terminal import Downloads, can_draw, progress_bar, results, say, tell
from salf.common.errors import SalfError
from salf.runs.config import Config

if TYPE_CHECKING:
    from salf.bench.results import Row
    from salf.bench.suite import Entrant, Suite

_OWN = (
    "batches", "batch_size", "local_steps", "local_epochs", "client_lr", "server", "momentum",
    "average", "reach",
)  # fmt: skip


@settings_of(Config, only=_OWN)
def bench(
    settings: Settings,
    suite: Annotated[
        str,
        option(
            "--suite",
            help="digits (a minute or two per method) | core (MNIST and Fashion-MNIST; the "
            "default) "
            "| full (also CIFAR-10) | FILE.toml",
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
            "slow-classes, "
            "day-night, sessions, by-labels.",
        ),
    ] = None,
    options: Options = None,
    workers: Workers = None,
    out: Annotated[
        Path,
        option(
            "--out",
            help="Folder for rows, results.csv and a page (bench); continues a bench begun there.",
        ),
    ] = Path("bench"),
    publish: Annotated[
        bool,
        option(
            "--publish",
            help="For maintainers: add the rows to the published results and the tables to "
            "docs/bench.md.",
        ),
    ] = False,
) -> None:
    """Compare methods in the straggler benchmark: the same scenarios, budget and tuning for all.

    Each method runs in every scenario with four learning rates and two seeds, then with the best
    rate and five other seeds. The table shows it beside the published results of all methods, with
    ranks. You can interrupt the command at any time and repeat it to continue.

    Examples:

        salf bench    (the published results)

        salf bench --method mypkg:Mine    (adds your row)

        salf bench --suite digits --method mypkg:Mine --option rate=0.5    (in a minute or two)

        salf bench --method salf+equal-time --scenario slow-classes,sessions

        salf bench --suite digits --method all    (reproduces all results)
    """
    from salf.bench import results as rows_of
    from salf.bench import suite as suites
    from salf.report.bench import print_tables, write_files
    from salf.report.extra import check_extra

    whole = suites.load(suite)
    chosen = whole.only(parse_list(scenario))
    entrants = _entrants(chosen, methods, parse_options(options) or {}, settings)
    is_own = suite.endswith(".toml")
    if publish and (is_own or not entrants):
        raise SalfError("--publish needs a suite of the benchmark and --method.")
    folder = rows_of.published_folder()
    published = {} if is_own else rows_of.usable(rows_of.read_all(folder), whole, say)
    drawn = can_draw(check_extra)
    made = []
    if entrants:
        on_row = partial(_publish, folder) if publish else None
        made = _run(chosen, entrants, out, published, workers, on_row)
    rows = _shown(chosen, [*published.values(), *made])
    if not rows:
        raise SalfError(
            f"no results of the suite {suite} are published yet: choose methods with --method, "
            "or run all with --method all."
        )
    print_tables(chosen, rows, results)
    for path in write_files(chosen, rows, out, sys.argv[1:], drawn=drawn):
        tell(f"wrote {path}")
    if publish:
        now = rows_of.usable(rows_of.read_all(folder), whole, say)
        _write_docs(whole, _shown(whole, list(now.values())), folder.parents[3] / "docs/bench.md")


def _entrants(
    chosen: "Suite", methods: str | None, options: Mapping[str, Any], settings: Settings
) -> "list[Entrant]":
    """The methods that were named, with the options and settings that were given."""
    if not methods and (options or settings):
        raise SalfError("options and settings belong to a method: choose one with --method.")
    if methods == "all":
        if options or settings:
            raise SalfError(
                "--method all runs methods with the settings of the table: leave out other "
                "settings."
            )
        return list(chosen.entrants)
    found = [chosen.entrant(name) for name in parse_list(methods)]
    if options or settings:
        found = [
            replace(
                entrant,
                options={**entrant.options, **options},
                settings={**entrant.settings, **settings},
                given_name="",
            )
            for entrant in found
        ]
    return list({entrant.name: entrant for entrant in found}.values())


def _run(
    chosen: "Suite",
    entrants: "Sequence[Entrant]",
    out: Path,
    published: "Mapping[str, Row]",
    workers: int | None,
    on_row: "Callable[[Row], None] | None",
) -> "list[Row]":
    """Run these methods, with a bar while it lasts."""
    from salf.bench.bench import bench as run

    with progress_bar(counted=False) as progress:
        task = progress.add_task("benchmark", total=None)
        return run(
            chosen,
            entrants,
            out,
            published,
            workers=workers,
            on_row=on_row,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            report=Downloads(),
        )


def _publish(folder: Path, row: "Row") -> None:
    """Put a row among the published results."""
    from salf.bench.results import write

    tell(f"published {write(folder, row, merge=True)}")


def _shown(chosen: "Suite", rows: "Sequence[Row]") -> "list[Row]":
    """The rows that have a result in the suite, the last of each name, without the reference."""
    from salf.bench.suite import REFERENCE

    by_name = {row.name: row for row in rows if any(cell.key in row.cells for cell in chosen.cells)}
    by_name.pop(REFERENCE.name, None)
    return list(by_name.values())


def _write_docs(whole: "Suite", rows: "Sequence[Row]", page: Path) -> None:
    """Put the tables between the marks of docs/bench.md, in a clone."""
    from salf.common.files import write_whole
    from salf.report.bench import markdown

    begin, end = f"<!-- salf bench {whole.name} -->\n", f"<!-- end {whole.name} -->\n"
    text = page.read_text("utf-8") if page.is_file() else ""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        say(f"{page} has no place for the tables of {whole.name}.")
        return
    write_whole(page, f"{before}{begin}\n{markdown(whole, rows)}\n{end}{after}")
    tell(f"wrote {page}")
