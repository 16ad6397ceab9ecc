"""All benchmarks of one process on one machine: one table, and the numbers in a file.

    python benchmarks/all.py [--quick] [--only engines,growth] [--out benchmarks/results.json]

Run it on an idle machine. Every benchmark is a process of its own, whose output goes to a log
beside the results. `--quick` takes fewer repetitions and smaller sizes.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from results import FILE
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


class Bench(NamedTuple):
    """A script, its arguments with `--quick`, and whether it runs on one thread."""

    script: str
    quick: str
    one_thread: bool = False


BENCHES = [
    Bench("engines", "--models mlp,cnn --repeats 8"),
    Bench("local_steps", "--rounds 4"),
    Bench("separate", "--repeats 6 --models mlp", one_thread=True),
    Bench("memory", "--users 1000"),
    Bench("users", "--users 100000 --rounds 4"),
    Bench("clock", "--repeats 6"),
    Bench("growth", "--quick --only users-mlp,layers,steps-mlp,live-none,live-median", True),
]


def run(bench: Bench, quick: bool, notes: Path, log: Path) -> str:
    """Run a benchmark; why it failed, or nothing."""
    environment = {**os.environ, FILE: str(notes)}
    if bench.one_thread:
        environment["OMP_NUM_THREADS"] = "1"
    arguments = bench.quick.split() if quick else []
    command = [sys.executable, str(HERE / f"{bench.script}.py"), *arguments]
    with log.open("a") as out:
        out.write(f"==== {bench.script} {' '.join(arguments)}\n")
        out.flush()
        code = subprocess.run(command, env=environment, stdout=out, stderr=out).returncode
    return f"failed with code {code}, see {log}" if code else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under five minutes")
    parser.add_argument("--only", help="comma-separated")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [bench.script for bench in BENCHES]
    log, began = given.out.with_suffix(".log"), perf_counter()
    log.unlink(missing_ok=True)
    found: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "torch": torch.__version__,
        "quick": given.quick,
        "benchmarks": {},
    }
    table = Table(title="Benchmarks, quick" if given.quick else "Benchmarks", title_justify="left")
    for column in ("benchmark", "what", "measured", "to reach"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    console = Console(width=120)
    for bench in (each for each in BENCHES if each.script in names):
        start = perf_counter()
        with tempfile.TemporaryDirectory() as folder, console.status(bench.script):
            notes = Path(folder) / "notes"
            notes.touch()
            failure = run(bench, given.quick, notes, log)
            rows = [json.loads(line) for line in notes.read_text().splitlines()]
        seconds = perf_counter() - start
        found["benchmarks"][bench.script] = {
            "seconds": seconds, "rows": rows, **({"failed": failure} if failure else {})
        }  # fmt: skip
        for row in rows:
            table.add_row(bench.script, row["what"], f"{row['value']:.3g} {row['unit']}", row["to"])
        if failure:
            table.add_row(bench.script, failure)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    console.print(table)
    console.print(f"{perf_counter() - began:.0f} s; the numbers are in {given.out}")
    if any("failed" in each for each in found["benchmarks"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
