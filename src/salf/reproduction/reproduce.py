"""Do the work of the items asked for, and leave files and one page. Nothing is done twice.

A folder holds NAME.csv and figures/NAME.png and .svg of every item, reproduction.html and .md
with all of them, and what they were made from: runs/ and measured/.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from salf.data import load, placed
from salf.errors import SalfError, unknown
from salf.experiments.config import Config
from salf.experiments.folder import SUMMARY, RunFolder
from salf.experiments.pool import Done, Job, OnProgress, Progress, run_all, run_job
from salf.experiments.run import Result, complete, cores
from salf.files import write_whole
from salf.report.extra import optional
from salf.reproduction.item import Found, Item, Json, Measurement, Outcome, Task, label
from salf.reproduction.items import ITEMS
from salf.reproduction.page import FIGURES, Made, page, versions
from salf.reproduction.presets import PRESETS, Preset

PAGE, TEXT, STATE = "reproduction.html", "reproduction.md", "reproduction.json"
DIVERGED = "diverged.json"

# Seconds a round takes on one core, roughly: only to say how much of the work is done.
_SECONDS = {"mlp": 0.005, "cnn": 0.02, "vgg11": 4.0, "vgg13": 6.0, "vgg16": 8.0, "vgg19": 10.0}


@dataclass(frozen=True)
class Settings:
    """What an item is made with, as it is remembered in the folder."""

    preset: str
    seeds: int | None = None  # of all runs; None: the preset's
    data_dir: str = ""

    def applied_to(self, preset: Preset) -> Preset:
        """The preset with these seeds, taking from the folder the data that are there."""
        if self.seeds is not None:
            preset = replace(preset, seeds=self.seeds, vgg_seeds=self.seeds)
        if not self.data_dir:
            return preset
        there = {
            data: placed(data, Path(self.data_dir))
            for data in {config.data for config in preset.configs.values()}
        }
        configs = {
            name: replace(config, data_dir=self.data_dir) if there[config.data] else config
            for name, config in preset.configs.items()
        }
        return replace(preset, configs=configs)


@dataclass
class Reproduction:
    """What the folder holds now, in the order of the page; what this call left out, and why.

    `diverged` names the runs of this call whose training did, each with the reason.
    """

    made: dict[str, Made] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)


def reproduce(
    what: Sequence[str],
    preset: Preset,
    out: Path,
    *,
    seeds: int | None = None,
    data_dir: str = "",
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    on_item: Callable[[str, Made], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> Reproduction:
    """Make items by name, or `all`; the same call again goes on where it stopped.

    The page has everything the folder holds, also what other calls made there. `on_item` is
    called with each item as soon as it is there.
    """
    items = _chosen(what)
    settings = Settings(preset.name, seeds, data_dir)
    sized = settings.applied_to(preset)
    workshop = Workshop(out)
    with workshop.locked():
        reproduction = Reproduction(_kept(workshop, items, preset, report or (lambda line: None)))
        tasks = {name: item.tasks(sized, workshop.remember) for name, item in items.items()}
        reproduction.skipped = _without_data(tasks, report)

        def on_ready(name: str, done: Done) -> None:
            made = workshop.put_together(items[name], sized, settings, done)
            workshop.write(name, made)
            reproduction.made[name] = made
            workshop.write_page(reproduction)
            if on_item is not None:
                on_item(name, made)

        there = {name: found for name, found in tasks.items() if name not in reproduction.skipped}
        reproduction.diverged = _do_all(there, workshop, workers, on_progress, on_ready)
        workshop.write_page(reproduction)
        return reproduction


def _kept(
    workshop: "Workshop", items: Mapping[str, Item], preset: Preset, tell: Callable[[str], None]
) -> dict[str, Made]:
    """What earlier calls made, saying what of it will be replaced or is lost."""
    for name, before in workshop.remembered().items():
        if name in items and before.preset != preset.name:
            tell(f"{name} was made with the preset {before.preset}; now with {preset.name}.")
    made, gone = workshop.made_before({**PRESETS, preset.name: preset})
    for name in gone - items.keys():
        tell(
            f"{name} is not on the page any more: it was made by another version, or some of its "
            "runs are gone. Make it again to have it there."
        )
    return made


def _do_all(
    tasks: Mapping[str, Sequence[Task]],
    workshop: "Workshop",
    workers: int | None,
    on_progress: OnProgress | None,
    on_ready: Callable[[str, Done], None],
) -> dict[str, str]:
    """Do the tasks of all items that are not done yet; the runs that diverged, and why.

    `on_ready` is called with each item as soon as all its tasks have ended.
    """
    distinct = {label(task): task for found in tasks.values() for task in _longest_first(found)}
    waiting = {name: {label(task) for task in found} for name, found in tasks.items()}
    before = workshop.done_before(distinct)

    def check(now: Done) -> None:
        done = Done(before.results | now.results, before.failures | now.failures)
        ended = done.results.keys() | done.failures.keys()
        for name in [name for name, labels in waiting.items() if labels <= ended]:
            del waiting[name]
            on_ready(name, done)

    def on_done(name: str, now: Done) -> None:
        if name in now.failures:
            workshop.note_divergence(distinct[name], now.failures[name])
        check(now)

    check(Done())
    jobs = {
        name: workshop.job(task)
        for name, task in distinct.items()
        if name not in before.results and name not in before.failures
    }
    if not jobs:
        return before.failures
    done = run_all(jobs, workers or min(cores(), len(jobs)), on_progress, on_done)
    return before.failures | done.failures


class Workshop:
    """The folder of a reproduction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def locked(self) -> AbstractContextManager[None]:
        """Keep others out: each would leave a page without what the other made."""
        return RunFolder(self.path).locked()

    def remembered(self) -> dict[str, Settings]:
        """The items that were made here, and with what."""
        stored = _read(self.path / STATE) or {}
        try:
            return {name: Settings(**stored[name]) for name in ITEMS if name in stored}
        except TypeError as error:
            raise _unreadable(self.path / STATE, error) from None

    def made_before(self, presets: Mapping[str, Preset]) -> tuple[dict[str, Made], set[str]]:
        """The items that are here already, put together from what they were made of.

        And those some of whose tasks are not here any more: no item is shown from a part of them.
        """
        made, gone = {}, set()
        for name, settings in self.remembered().items():
            item, preset = ITEMS[name], presets.get(settings.preset)
            sized = None if preset is None else settings.applied_to(preset)
            tasks = {} if sized is None else {label(t): t for t in item.tasks(sized, self.remember)}
            done = self.done_before(tasks)
            if sized is None or tasks.keys() > done.results.keys() | done.failures.keys():
                gone.add(name)
                continue
            made[name] = self.put_together(item, sized, settings, done)
        return made, gone

    def put_together(self, item: Item, sized: Preset, settings: Settings, done: Done) -> Made:
        """An item from what its tasks gave, with the story of each."""
        tasks = {label(task): task for task in item.tasks(sized, self.remember)}
        return Made(
            item.title,
            item.outcome(sized, Found(done.results), self.remember),
            **asdict(settings),
            diverged={name: done.failures[name] for name in tasks if name in done.failures},
            versions={
                name: noted for name, task in tasks.items() if (noted := self._versions(task))
            },
        )

    def done_before(self, tasks: Mapping[str, Task]) -> Done:
        """What is here already of some tasks, also which of them diverged."""
        done = Done()
        for name, task in tasks.items():
            if (result := self._result(task)) is not None:
                done.results[name] = result
            elif isinstance(task, Config) and (noted := _read(self._folder(task) / DIVERGED)):
                done.failures[name] = str(noted["reason"])
        return done

    def note_divergence(self, task: Task, reason: str) -> None:
        """Remember that a run diverged: the same config would do so again."""
        if isinstance(task, Config):
            write_whole(self._folder(task) / DIVERGED, json.dumps({"reason": reason}) + "\n")

    def write(self, name: str, made: Made) -> None:
        """Leave an item's files; that it is there is noted last."""
        vl_convert, outcome = optional("vl_convert"), made.outcome
        # All made before the first is written, so that what cannot be made leaves nothing behind.
        files: dict[Path, str | bytes] = {
            self.path / f"{name}.csv": _csv(outcome),
            self.path / FIGURES / f"{name}.png": vl_convert.vegalite_to_png(
                dict(outcome.figure), scale=2
            ),
            self.path / FIGURES / f"{name}.svg": vl_convert.vegalite_to_svg(dict(outcome.figure)),
        }
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        settings = self.remembered() | {name: Settings(made.preset, made.seeds, made.data_dir)}
        state = {name: asdict(settings[name]) for name in ITEMS if name in settings}
        write_whole(self.path / STATE, json.dumps(state, indent=2) + "\n")

    def write_page(self, reproduction: Reproduction) -> None:
        """All items in one page, and the same text in Markdown."""
        if not reproduction.made:
            return
        reproduction.made = {n: reproduction.made[n] for n in ITEMS if n in reproduction.made}
        made = page(reproduction.made, reproduction.skipped)
        write_whole(self.path / PAGE, made.html())
        write_whole(self.path / TEXT, made.markdown())

    def remember(self, measurement: Measurement) -> Json:
        """What a measurement gave here before; measured now, if it was not."""
        return _measure(measurement, self._file(measurement), lambda share: None)

    def job(self, task: Task) -> Job:
        """A task as a job whose result stays in the folder."""
        if isinstance(task, Measurement):
            return Job(partial(_measure, task, self._file(task)), _work(task))
        return run_job(task, self._folder(task), _work(task))

    def _result(self, task: Task) -> Any:
        if isinstance(task, Measurement):
            return (_read(self._file(task)) or {}).get("found")
        folder, config = RunFolder(self._folder(task)), complete(task)
        summary = folder.finished(config)
        return None if summary is None else Result(config, folder.history(summary), summary)

    def _versions(self, task: Task) -> dict[str, str]:
        """What a task was done with, of the packages that a page names; none if it diverged."""
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


def _without_data(
    tasks: Mapping[str, Sequence[Task]], report: Callable[[str], None] | None
) -> dict[str, str]:
    """The items whose data are not to be had, with the reason. Fetched once, and now."""
    reasons: dict[tuple[str, str], str | None] = {}
    skipped = {}
    for name, found in tasks.items():
        for task in found:
            if isinstance(task, Config):
                source = task.data, task.data_dir
            elif "data" in task.arguments:
                source = task.arguments["data"], task.arguments.get("data_dir", "")
            else:
                continue
            if source not in reasons:
                reasons[source] = _lacking(*source, report)
            if reason := reasons[source]:
                skipped[name] = reason
    if len(skipped) == len(tasks):
        raise SalfError(next(iter(skipped.values())))
    return skipped


def _lacking(data: str, data_dir: str, report: Callable[[str], None] | None) -> str | None:
    try:
        load(data, Path(data_dir) if data_dir else None, report=report)
    except SalfError as error:
        return str(error)
    return None


def _longest_first(tasks: Sequence[Task]) -> list[Task]:
    """So that at the end no core waits long for the other."""
    return sorted(tasks, key=_work, reverse=True)


def _work(task: Task) -> float:
    """In seconds, roughly."""
    if isinstance(task, Measurement):
        return task.work
    return task.rounds * _SECONDS.get(task.model, 0.1)


def _measure(measurement: Measurement, path: Path, progress: Progress) -> Json:
    if (before := _read(path)) is not None:
        found: Json = before["found"]
        return found
    found = measurement(progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"arguments": dict(measurement.arguments), "versions": versions(), "found": found}
    write_whole(path, json.dumps(record) + "\n")
    return found


def _read(path: Path) -> Json | None:
    """The table in a JSON file of ours; None if there is no file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _unreadable(path, error) from None
    if not isinstance(stored, dict):
        raise _unreadable(path, "it holds no table")
    return stored


def _unreadable(path: Path, why: object) -> SalfError:
    return SalfError(f"{path} cannot be read ({why}). Delete it to have it made anew.")


def _csv(outcome: Outcome) -> str:
    text = io.StringIO()
    columns = list(outcome.rows[0]) if outcome.rows else []  # none if all its runs diverged
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(outcome.rows)
    return text.getvalue()
