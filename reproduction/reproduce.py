"""Make the items asked for in a folder; nothing is computed twice.

The folder holds NAME.csv, figures/NAME.png and figures/NAME.svg of every item, all items as
reproduction.html and reproduction.md, and what they were made from: runs/ and measured/.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reproduction.item import Found, Item, ItemTask, Json, Measurement, label
from reproduction.items import ITEMS
from reproduction.markdown import markdown
from reproduction.page import FIGURES, Made, page
from reproduction.sizes import SIZES, ItemSettings, Size
from salf.common.errors import SalfError, unknown
from salf.common.files import csv_of, write_all, write_whole
from salf.common.pictures import pictures
from salf.data import load
from salf.runs.config import Config
from salf.runs.federation import data_files
from salf.runs.folder import SUMMARY, RunFolder, versions
from salf.runs.pool import Finished, Job, OnProgress, WorkersLike, run_all, run_job
from salf.runs.run import Result, complete
from salf.runs.training import OnPart

PAGE, TEXT, STATE = "reproduction.html", "reproduction.md", "reproduction.json"
DIVERGED = "diverged.json"

Tell = Callable[[str], None]

# Rough seconds per round on one core, for the progress bar.
_SECONDS = {"mlp": 0.005, "cnn": 0.02, "vgg11": 4.0, "vgg13": 6.0, "vgg16": 8.0, "vgg19": 10.0}


@dataclass
class Reproduction:
    """The items in the folder, in the order of the page; the items and runs without a result.

    `skipped` and `diverged` have the reasons, for this call.
    """

    made: dict[str, Made] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)


def reproduce(
    what: Sequence[str],
    size: Size,
    out: Path,
    *,
    seeds: int | None = None,
    data_dir: str = "",
    workers: WorkersLike = None,
    on_progress: OnProgress | None = None,
    on_item: Callable[[str, Made], None] | None = None,
    report: Tell | None = None,
) -> Reproduction:
    """Make items by name, or `all`; the same call again continues where it stopped.

    The page has everything the folder holds, also what other calls made there. `on_item` is
    called with each item as soon as it is made.
    """
    items, settings = _chosen(what), ItemSettings(size.name, seeds, data_dir)
    sized = settings.applied_to(size)
    workshop = Workshop(out)
    with workshop.locked():
        made = workshop.made_before(items, size, report or (lambda line: None))
        tasks = {name: item.tasks(sized) for name, item in items.items()}
        reproduction = Reproduction(made, _without_data(tasks, report))

        def on_ready(names: Sequence[str], done: Finished) -> None:
            for name in names:
                made = workshop.put_together(items[name], sized, settings, done)
                workshop.write(name, made)
                reproduction.made[name] = made
                if on_item is not None:
                    on_item(name, made)
            workshop.write_page(reproduction)

        to_do = {name: some for name, some in tasks.items() if name not in reproduction.skipped}
        reproduction.diverged = _do_all(to_do, workshop, workers, on_progress, on_ready)
        return reproduction


def _do_all(
    tasks: Mapping[str, Sequence[ItemTask]],
    workshop: "Workshop",
    workers: WorkersLike,
    on_progress: OnProgress | None,
    on_ready: Callable[[Sequence[str], Finished], None],
) -> dict[str, str]:
    """Do the tasks of all items that are not done yet; the runs that diverged, and why.

    `on_ready` is called with items as soon as all their tasks have ended.
    """
    # The longest first, so that no core is idle for long at the end.
    distinct = {
        label(task): task
        for some in tasks.values()
        for task in sorted(some, key=_work, reverse=True)
    }
    waiting = {name: {label(task) for task in some} for name, some in tasks.items()}
    before = workshop.done_before(distinct)

    def check(now: Finished) -> None:
        done = Finished(before.results | now.results, before.failures | now.failures)
        ended = done.results.keys() | done.failures.keys()
        if ready := [name for name, labels in waiting.items() if labels <= ended]:
            on_ready(ready, done)
        for name in ready:
            del waiting[name]

    def on_done(name: str, now: Finished) -> None:
        if name in now.failures:
            workshop.note_divergence(distinct[name], now.failures[name])
        check(now)

    check(Finished())
    ended = before.results.keys() | before.failures.keys()
    jobs = {name: workshop.job(task) for name, task in distinct.items() if name not in ended}
    if not jobs:
        return before.failures
    done = run_all(jobs, workers, on_progress, on_done)
    return before.failures | done.failures


class Workshop:
    """The folder of a reproduction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out."""
        return RunFolder(self.path).locked()

    def remembered(self) -> dict[str, ItemSettings]:
        """The items that were made here, and with what."""
        stored = _read(self.path / STATE) or {}
        try:
            return {name: ItemSettings(**stored[name]) for name in ITEMS if name in stored}
        except TypeError as error:
            raise _unreadable(self.path / STATE, error) from None

    def made_before(self, again: Mapping[str, Item], size: Size, tell: Tell) -> dict[str, Made]:
        """The items in the folder; tells which will be replaced and which are not complete."""
        made = {}
        for name, settings in self.remembered().items():
            if name in again and settings.size != size.name:
                tell(f"{name} was made at size {settings.size}; now at size {size.name}.")
            known = {**SIZES, size.name: size}.get(settings.size)
            if known is not None:
                sized = settings.applied_to(known)
                tasks = {label(task): task for task in ITEMS[name].tasks(sized)}
                done = self.done_before(tasks)
                if tasks.keys() <= done.results.keys() | done.failures.keys():
                    made[name] = self.put_together(ITEMS[name], sized, settings, done)
            if name not in made and name not in again:
                tell(
                    f"{name} is no longer on the page: another version made it, or some of its "
                    "runs were deleted. Run it again to restore it."
                )
        return made

    def put_together(self, item: Item, size: Size, settings: ItemSettings, done: Finished) -> Made:
        """An item from the results of its tasks."""
        tasks = {label(task): task for task in item.tasks(size)}
        noted = {name: self._versions(task) for name, task in tasks.items()}
        return Made(
            item.title,
            item.outcome(size, Found(done.results)),
            settings,
            diverged={name: done.failures[name] for name in tasks if name in done.failures},
            versions={name: found for name, found in noted.items() if found},
        )

    def done_before(self, tasks: Mapping[str, ItemTask]) -> Finished:
        """The results that are in the folder, and the runs that diverged."""
        done = Finished()
        for name, task in tasks.items():
            if (result := self._result(task)) is not None:
                done.results[name] = result
            elif isinstance(task, Config) and (noted := _read(self._folder(task) / DIVERGED)):
                done.failures[name] = str(noted["reason"])
        return done

    def note_divergence(self, task: ItemTask, reason: str) -> None:
        """Remember that a run diverged: the same config would diverge again."""
        if isinstance(task, Config):
            write_whole(self._folder(task) / DIVERGED, json.dumps({"reason": reason}) + "\n")

    def write(self, name: str, made: Made) -> None:
        """Write an item's files, and last that the item is made."""
        # All are made before the first is written, so that an error leaves none behind.
        table = {self.path / f"{name}.csv": csv_of(made.outcome.rows)}
        (self.path / FIGURES).mkdir(parents=True, exist_ok=True)
        write_all({**table, **pictures(made.outcome.figure, self.path / FIGURES / name)})
        settings = self.remembered() | {name: made.settings}
        state = {name: asdict(settings[name]) for name in ITEMS if name in settings}
        write_whole(self.path / STATE, json.dumps(state, indent=2) + "\n")

    def write_page(self, reproduction: Reproduction) -> None:
        """All items on one page, and the same text in Markdown."""
        if not reproduction.made:
            return
        reproduction.made = {n: reproduction.made[n] for n in ITEMS if n in reproduction.made}
        made = page(reproduction.made, reproduction.skipped)
        write_whole(self.path / PAGE, made.html())
        write_whole(self.path / TEXT, markdown(made))

    def job(self, task: ItemTask) -> Job:
        """A task as a job whose result stays in the folder."""
        if isinstance(task, Measurement):
            file, known = self._file(task).absolute(), task.arguments
            named = {name: known[name] for name in ("data", "data_dir") if name in known}
            reads = data_files(Config(**named)) if named else ()
            return Job(partial(_measure, task, file), _work(task), file, reads)
        return run_job(task, self._folder(task), _work(task))

    def _result(self, task: ItemTask) -> Any:
        if isinstance(task, Measurement):
            return (_read(self._file(task)) or {}).get("found")
        folder, config = RunFolder(self._folder(task)), complete(task)
        summary = folder.finished(config)
        return None if summary is None else Result(config, folder.history(summary), summary)

    def _versions(self, task: ItemTask) -> dict[str, str]:
        """The versions a task was done with, of the packages on which numbers depend."""
        path = self._file(task) if isinstance(task, Measurement) else self._folder(task) / SUMMARY
        noted = (_read(path) or {}).get("versions", {})
        return {package: noted[package] for package in versions() if package in noted}

    def _file(self, measurement: Measurement) -> Path:
        return self.path / "measured" / f"{label(measurement)}.json"

    def _folder(self, config: Config) -> Path:
        return self.path / "runs" / label(config)


def _chosen(what: Sequence[str]) -> dict[str, Item]:
    for name in what:
        if name not in ITEMS and name != "all":
            raise unknown("item", name, [*ITEMS, "all"])
    everything = not what or "all" in what
    return {name: item for name, item in ITEMS.items() if everything or name in what}


def _without_data(tasks: Mapping[str, Sequence[ItemTask]], report: Tell | None) -> dict[str, str]:
    """The items whose data cannot be loaded, with the reason. Data are downloaded here, once."""
    reasons: dict[tuple[str, str], str] = {}
    skipped = {}
    for name, some in tasks.items():
        for task in some:
            known = vars(task) if isinstance(task, Config) else task.arguments
            if "data" not in known:
                continue
            source = data, data_dir = known["data"], known["data_dir"]
            if source not in reasons:
                try:
                    load(data, Path(data_dir) if data_dir else None, report=report)
                    reasons[source] = ""
                except SalfError as error:
                    reasons[source] = str(error)
            if reasons[source]:
                skipped[name] = reasons[source]
    if len(skipped) == len(tasks):
        raise SalfError(next(iter(skipped.values())))
    return skipped


def _work(task: ItemTask) -> float:
    """In seconds, roughly."""
    if isinstance(task, Measurement):
        return task.work
    return task.rounds * _SECONDS.get(task.model, 0.1)


def _measure(measurement: Measurement, path: Path, progress: OnPart) -> Json:
    if (before := _read(path)) is not None:
        found: Json = before["found"]
        return found
    found = measurement(progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"arguments": dict(measurement.arguments), "versions": versions(), "found": found}
    write_whole(path, json.dumps(record) + "\n")
    return found


def _read(path: Path) -> Json | None:
    """The object in a JSON file; None if there is no file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _unreadable(path, error) from None
    if not isinstance(stored, dict):
        raise _unreadable(path, "it contains no object")
    return stored


def _unreadable(path: Path, why: object) -> SalfError:
    return SalfError(f"{path} cannot be read ({why}). Delete it; it will be computed again.")
