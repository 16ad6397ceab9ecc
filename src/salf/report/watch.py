"""A folder of runs that are at work, from its files: what they say, and since when."""

import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.core import rows as records
from salf.methods import asks
from salf.report import charts, comparison, live, names
from salf.report.measured import spread
from salf.report.page import Page, Section
from salf.report.tables import Table
from salf.runs.compare import Case, Comparison
from salf.runs.config import Config
from salf.runs.folder import CONFIG, METRICS, ROUNDS, SUMMARY, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.run import Result
from salf.runs.training import History

RUNS = "runs.txt"  # the names of all runs of a comparison, one a line
QUIET, ROUNDS_LATE = 30.0, 3  # seconds, and rounds of the run, after which data are late
# What a file may be that was not written by salf, or is not whole yet.
UNREADABLE = (SalfError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
_CASE = ("method", "average", "split", "stragglers", "batches")
_BESIDE = (*_CASE, "seed", "options", "reach", "threads", "rounds", "files", "eval_seconds")


class Watched:
    """The runs in a folder and its subfolders, of any process; nothing is locked or changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[Path, Result] = {}
        self.version, self.page = "", Page(f"{folder}", ["There is no run here yet."], [])
        self._files: dict[Path, object] = {}
        self._changed = self._next = time.monotonic()
        self._trouble = ""

    def look(self) -> None:
        """Read what has changed since, and make the page anew; not so often that it costs much."""
        begun = time.monotonic()
        if begun < self._next:
            return
        paths = [each for up in ("", "*/", "*/*/") for each in self.folder.glob(f"{up}{CONFIG}")]
        stamps = {path.parent: stamp for path in paths if (stamp := _stamp(path.parent))}
        if stamps != self._files:
            try:
                self._read(stamps)
                self._trouble = ""
            except UNREADABLE as error:
                self._trouble = f" Some files cannot be read: {type(error).__name__}."
        self._next = time.monotonic() + 4 * (time.monotonic() - begun)

    def _read(self, stamps: dict[Path, Any]) -> None:
        changed = [path for path, stamp in stamps.items() if self._files.get(path) != stamp]
        before = {path: _size(run) for path, run in self.runs.items()}
        runs = {p: r for p, r in self.runs.items() if p in stamps} | {p: _run(p) for p in changed}
        self.page = self._drawn({path: runs[path] for path in sorted(runs)})
        if before != {path: _size(run) for path, run in runs.items()}:  # and not only copied again
            age = 0.0 if before else time.time() - max(last for _, last in stamps.values())
            self._changed = time.monotonic() - max(0.0, age)
        self.runs, self._files, self.version = runs, stamps, f"{time.time_ns()}"

    @property
    def planned(self) -> int:
        """How many runs there will be, as far as is known."""
        try:
            return len((self.folder / RUNS).read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError):
            return len(self.runs)

    def status(self) -> tuple[str, str]:
        """What is known of the runs and since when, and the mood of it."""
        done, age = sum(bool(run.summary) for run in self.runs.values()), self.age
        ended = bool(self.runs) and done >= max(self.planned, len(self.runs))
        latest = [row.seconds for run in self.runs.values() for row in run.history.rows[-3:]]
        fresh = f"Last new data {_ago(age)} ago"
        if ended:
            return f"Finished. {fresh}.{self._trouble}", "good"
        if age > QUIET + ROUNDS_LATE * max(latest, default=0.0):
            why = "the run was stopped or killed, or its files are no longer copied here"
            return f"No new data for {_ago(age)}: {why}.{self._trouble}", "bad"
        return f"{fresh}; {done} of {self.planned} runs finished.{self._trouble}", "none"

    @property
    def age(self) -> float:
        """Seconds since the runs said something new."""
        return time.monotonic() - self._changed

    def _drawn(self, runs: dict[Path, Result]) -> Page:
        results = [run for run in runs.values() if run.history.rows]
        if not results:
            return Page(f"{self.folder}", ["No round has been saved yet."], [])
        config, first = results[0].config, results[0]
        if isinstance(config, LiveConfig):
            run = live.LiveRun(config, first.history.rows, first.summary or None)
            return live.page(run, self.folder)
        compared = compared_of(results)
        whole = comparison.page(compared, ["watch", str(self.folder)])
        if all(run.summary for run in runs.values()) and len(runs) >= self.planned:
            return whole
        said = f"Not finished: {len(results)} of {self.planned} runs have saved rounds."
        so_far = Section("So far", [progress(compared)])
        return Page(whole.title, [said], [so_far, *whole.sections[1:]])


def write_page(folder: Path) -> Path:
    """Write the page of the runs in a folder, finished or not, and return its path."""
    watched = Watched(folder)
    watched.look()
    if not any(run.history.rows for run in watched.runs.values()):
        raise SalfError(f"{folder} has no saved round of a run; try again after the first one.")
    live_run = isinstance(next(iter(watched.runs.values())).config, LiveConfig)
    path = folder / (live.PAGE if live_run else comparison.PAGE)
    write_whole(path, watched.page.html())
    return path


def compared_of(results: Sequence[Result]) -> Comparison:
    """Runs side by side: what they differ in tells them apart."""
    tables = [run.config.table() for run in results]
    several = [n for n in tables[0] if len({repr(table.get(n)) for table in tables}) > 1]
    ratios = {table["stragglers"] for table in tables if not asks(table["method"]).waits}
    found: dict[Case, list[Result]] = {}
    for run, table in zip(results, tables, strict=True):
        given = table["options"] if "options" in several else {}
        options = ", ".join(f"{name}={value}" for name, value in given.items())
        more = tuple((n, table[n]) for n in several if n not in _BESIDE)
        named = {name: table[name] for name in _CASE} | {"more": more}
        named["method"] += f"({options})" if options else ""
        # A method that waits has one result, whatever the ratio.
        for ratio in sorted(ratios) if ratios and asks(table["method"]).waits else [None]:
            case = Case(**named | ({} if ratio is None else {"stragglers": ratio}))
            found.setdefault(case, []).append(run)
    base = results[0].config
    assert isinstance(base, Config)
    return Comparison(base, found)


def progress(compared: Comparison) -> Table:
    """How far runs are: their rounds, their latest accuracy on held-out data."""
    lines, most = [], compared.base.rounds
    total = f" of {most:,}" if most else ""
    for case, runs in compared.results.items():
        rows = [run.history.rows for run in runs]
        latest = [run.history.curve[-1][1] for run in runs if run.history.curve]
        clocks = [each[-1].clock for each in rows if each[-1].clock is not None]
        place = ", ".join(charts.headings(compared, case))
        lines.append(
            {
                "Method": ", ".join(filter(None, [charts.name(case), place])),
                "Held-out accuracy": spread(latest),
                "Rounds": f"{fmean(map(len, rows)):,.0f}{total}",
                **({"Seconds": f"{fmean(clocks):.4g}"} if clocks else {}),
                "Finished": f"{sum(bool(run.summary) for run in runs)} of {len(runs)}",
            }
        )
    return Table.of(lines)


def _stamp(path: Path) -> tuple[Any, float] | None:
    """What changes with the files of a run, and when the last one did; None before its rounds."""
    try:
        known = [path / name for name in (METRICS, ROUNDS, SUMMARY)]
        found = [file.stat() for file in known if file.exists()]
    except OSError:
        return None
    last = max((stat.st_mtime for stat in found), default=0.0)
    return ([(stat.st_mtime_ns, stat.st_size) for stat in found], last) if found else None


def _run(path: Path) -> Result:
    """A run from its files, finished or not; then its latest accuracy stands for the test's."""
    table = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    kind = LiveConfig if (path / ROUNDS).exists() else Config
    config = kind.unchecked({name.replace("-", "_"): value for name, value in table.items()})
    summary = RunFolder(path).summary() or {}  # read first: it is written last
    rows = records.read(path / ROUNDS) or records.read_csv(path / METRICS)
    latest = [row.accuracy for row in rows if row.accuracy is not None][-1:]
    test = {name: value for name, value in summary.get("test", {}).items() if value is not None}
    test = test or ({"accuracy": latest[0]} if latest else {})
    return Result(config, History(tuple(rows), test), summary)


def _size(run: Result) -> tuple[int, bool]:
    return len(run.history.rows), bool(run.summary)


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else names.duration(60 * (seconds // 60))
