"""Publish results of the benchmark: its rows into the package, its tables into docs/bench.md.

    python tools/publish_bench.py --suite core --method salf,drop      # or --method all

Takes the options of `salf bench`, runs it first, and publishes the rows of these methods.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from salf.bench import results
from salf.bench.results import BenchRow
from salf.bench.suite import REFERENCE, Suite, load
from salf.common.files import write_whole
from salf.report.bench import Standings

DOCS = Path(__file__).parents[1] / "docs" / "bench.md"


def main(arguments: Sequence[str]) -> None:
    """Run `salf bench` with these arguments, then publish."""
    from salf.cli import main as salf

    parser = ArgumentParser(description="Publish results of the benchmark.")
    parser.add_argument("--suite", default="core", choices=["digits", "core", "full"])
    parser.add_argument("--method", required=True, help="names, comma-separated, or all")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    given, _ = parser.parse_known_args(arguments)
    sys.argv = ["salf", "bench", *arguments]
    try:
        salf()
    except SystemExit as ended:
        if ended.code:
            raise
    suite = load(given.suite)
    names = [each.name for each in suite.entrants] if given.method == "all" else []
    names = names or [each.strip() for each in given.method.split(",")]
    publish(suite, given.out, [*names, REFERENCE.name])


def publish(suite: Suite, out: Path, names: Sequence[str]) -> None:
    """Put the rows of these names in `out`/rows among the published ones, and write the docs."""
    folder, made = results.published_folder(), results.read_all(out / "rows")
    known = results.read_all(folder)
    for row in (made[name] for name in names if name in made):
        print(f"published {results.write(folder, merged(row, known.get(row.name)))}")
    write_docs(suite, results.shown(suite, list(results.published(suite, print).values())))


def merged(row: BenchRow, older: BenchRow | None) -> BenchRow:
    """The row, and the cells that only an older one of the same version of the suite has."""
    if older is None or older.version != row.version:
        return row
    return replace(row, cells={**older.cells, **row.cells})


def write_docs(suite: Suite, rows: Sequence[BenchRow]) -> None:
    """Put the tables between the suite's marks in docs/bench.md."""
    begin, end = f"<!-- salf bench {suite.name} -->\n", f"<!-- end {suite.name} -->\n"
    before, found, rest = DOCS.read_text("utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{DOCS} has no place for the tables of {suite.name}.")
    write_whole(DOCS, f"{before}{begin}\n{markdown(suite, rows)}\n{end}{after}")
    print(f"wrote {DOCS}")


def markdown(suite: Suite, rows: Sequence[BenchRow]) -> str:
    """The tables and notes."""
    standings = Standings(suite, rows)
    tables = [standings.ranks(), *map(standings.accuracies, suite.data)]
    said = [*standings.notes(), *(f"- {gap}" for gap in standings.gaps())]
    return "\n".join([*(table.markdown() for table in tables), *said]) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
