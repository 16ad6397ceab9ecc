"""A folder of runs, at work or not, from its files: what they say, and since when."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.common.registry import importing_nothing
from salf.core import rows as records
from salf.report import comparison, live, names
from salf.report.page import Page, Section
from salf.runs.compare import CASES, RUNS, Case, Comparison
from salf.runs.config import Config
from salf.runs.folder import CONFIG, METRICS, ROUNDS, SUMMARY, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config
from salf.runs.run import Result
from salf.runs.training import History

QUIET, LATE = 30.0, 3  # seconds, and rounds of the run, after which data are late
CASE = ("method", "average", "split", "stragglers")  # settings that a run alone is called by
# What reading a file may raise that salf did not write, or that is only half copied.
UNREADABLE = (SalfError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


class Watched:
    """The runs in a folder and its subfolders, of any process; nothing is locked or changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.planned = folder, 0
        self.runs: dict[Path, Result] = {}
        self.page = Page(f"{folder}", ["No round has been saved yet."], [])
        self.version = self._trouble = ""
        self._files: dict[Path, Any] = {}
        self._next = self._looked = self._changed = time.monotonic()

    def look(self) -> None:
        """Read what has changed, and make the page anew; not so often that it costs much."""
        if (begun := time.monotonic()) < self._next:
            return
        try:
            self._read()
            self._trouble = ""
        except UNREADABLE as error:
            self._trouble = f" Some files cannot be read ({type(error).__name__})."
        self._looked, self._next = begun, time.monotonic() + 4 * (time.monotonic() - begun)

    def _read(self) -> None:
        listed = self.folder / CASES
        cases = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
        paths = {self.folder / RUNS / name: None for name, _ in cases} or {self.folder: None}
        files = {path: found for path in paths if (found := _files(path))}
        if files == self._files:
            return
        old, runs = self._files, self.runs
        runs = {p: runs[p] if each == old.get(p) else _run(p) for p, each in files.items()}
        self.planned = len(paths)
        with importing_nothing(f"{self.folder}", loaded=True):
            self.page = self._drawn(runs, cases)
        if _told(runs) != _told(self.runs):  # and not only copied again
            age = max(0.0, time.time() - max(at for each in files.values() for at, _ in each))
            since = time.monotonic() - self._looked if self.runs else age
            self._changed = time.monotonic() - min(age, since)
        self.runs, self._files, self.version = runs, files, f"{time.time_ns()}"

    def status(self) -> tuple[str, str]:
        """What is known of the runs and since when, and its mood."""
        age = time.monotonic() - self._changed
        done = sum(bool(run.summary) for run in self.runs.values())
        late = [row.seconds for run in self.runs.values() for row in run.history.rows[-3:]]
        ago = f"{age:.0f} s" if age < 120 else names.duration(60 * (age // 60))
        if self.runs and done == self.planned:
            return f"Finished. The last data came {ago} ago.{self._trouble}", "good"
        if age > QUIET + LATE * max(late, default=0.0):
            why = "the run was stopped or killed, or its files no longer come here"
            return f"No new data for {ago}: {why}.{self._trouble}", "bad"
        said = f"Last new data {ago} ago; {done} of {self.planned} runs finished."
        return said + self._trouble, "none"

    def _drawn(self, runs: Mapping[Path, Result], cases: Sequence[Any]) -> Page:
        results: dict[Case, list[Result]] = {}
        for name, case in cases:
            if (run := runs.get(self.folder / RUNS / name)) is not None:
                more = tuple((each[0], each[1]) for each in case["more"])
                results.setdefault(Case(**{**case, "more": more}), []).append(run)
        again = ["watch", f"{self.folder}"]
        for run in () if cases else runs.values():
            if isinstance(run.config, LiveConfig):
                found = live.LiveRun(run.config, run.history.rows, run.summary or None)
                return live.page(found, self.folder)
            given = {name: getattr(run.config, name) for name in CASE}
            results[Case(**{**given, "batches": run.summary.get("batches", "equal")})] = [run]
            again = ["run", f"{self.folder / CONFIG}"]
        if not results:
            return self.page
        base = next(iter(results.values()))[0].config
        assert isinstance(base, Config)
        compared = Comparison(base, results)
        page = comparison.page(compared, again)
        done = sum(bool(run.summary) for run in runs.values())
        if done == self.planned:
            return page
        rounds = fmean(len(run.history.rows) for run in runs.values())
        said = f"{done} of {self.planned} runs are finished; those begun have {rounds:,.0f} rounds."
        so_far = Section("So far, on held-out data", comparison.tables(compared))
        return Page(page.title, [said], [so_far, *page.sections[1:]])


def write_page(folder: Path) -> Path:
    """Write the page of the runs in a folder, finished or not, and return its path."""
    watched = Watched(folder)
    watched._read()
    if not watched.runs:
        raise SalfError(f"{folder} has no saved round of a run; try again after the first one.")
    is_live = isinstance(next(iter(watched.runs.values())).config, LiveConfig)
    path = folder / (live.PAGE if is_live else comparison.PAGE)
    write_whole(path, watched.page.html())
    return path


def _files(path: Path) -> list[tuple[float, int]]:
    """When the files of a run were changed, and their sizes; none before its rounds."""
    found = [(path / name) for name in (METRICS, ROUNDS, SUMMARY)]
    return [
        (stat.st_mtime, stat.st_size) for each in found if each.exists() and (stat := each.stat())
    ]


def _told(runs: dict[Path, Result]) -> dict[Path, tuple[int, bool]]:
    return {path: (len(run.history.rows), bool(run.summary)) for path, run in runs.items()}


def _run(path: Path) -> Result:
    """A run from its files. Before its end, the latest accuracy stands for that on test data."""
    config = load_config(f"{path / CONFIG}", look=True)
    summary = RunFolder(path).summary() or {}  # read first: it is written last
    rows = records.read(path / ROUNDS) or records.read_csv(path / METRICS)
    latest = next((row.accuracy for row in rows[::-1] if row.accuracy is not None), None)
    test = {name: value for name, value in summary.get("test", {}).items() if value is not None}
    known = test or ({} if latest is None else {"accuracy": latest})
    return Result(config, History(tuple(rows), known), summary)
