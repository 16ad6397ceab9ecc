"""A comparison for people: a verdict and tables in the terminal, pictures, and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

from salf.common.figures import Figure
from salf.common.files import write_all
from salf.common.pictures import pictures
from salf.report import charts, names
from salf.report.measured import at_end, seeds, spread, tested
from salf.report.page import Chart, Note, Page, PageBlock, Section, again, made_with
from salf.report.parts import AXES, explained
from salf.report.tables import NONE, Table, best, bold, not_reached, tell
from salf.report.texts import text, texts
from salf.report.verdict import budget, mean_time, number, target, verdict
from salf.runs.compare import Case, Clocked, Comparison
from salf.runs.settings import key as setting_key
from salf.worlds.depth import has_ratio
from salf.worlds.fleet.named import CLASSES

PAGE = "report.html"
TO_TARGET = "Seconds to target"


def print_tables(comparison: Comparison, console: Console) -> None:
    """Print the verdict, and a table per split and way of averaging."""
    said, ahead = verdict(comparison)
    tell(console, said, "")
    for table in [*tables(comparison), *ahead]:
        tell(console, table, "")
    tell(console, notes(comparison))


def write_report(comparison: Comparison, out: Path, command: Sequence[str]) -> list[Path]:
    """Write the page `report.html` and a picture, `accuracy` or `loss`, into `out`.

    `command` are the arguments `salf` was called with, if it was. Returns the files written.
    """
    name = "accuracy" if charts.shown(comparison)[0] == "accuracy" else "loss"
    files = pictures(charts.curves(comparison), out / name)
    return write_all({**files, out / PAGE: page(comparison, command).html()})


def write_together(parts: Sequence[tuple[str, Comparison, Sequence[str]]], out: Path) -> list[Path]:
    """Write several comparisons, each with a heading and its command, as one page.

    The verdicts come first.
    """
    files, intro = dict[Path, str | bytes](), list[str]()
    sections, how = list[Section](), list[PageBlock]()
    for heading, comparison, command in parts:
        own = page(comparison, command)
        intro.append(f"{heading}. {' '.join(own.intro)}")
        # The first section is the table: it goes under the heading of its part.
        sections += [Section(heading, own.sections[0].blocks), *own.sections[1:-2]]
        how += [block for section in own.sections[:-3:-1] for block in section.blocks]
        name = f"accuracy-{names.fleet_name(comparison.base).partition(':')[0]}"
        files |= pictures(charts.curves(comparison), out / name)
    sections.append(Section(own.sections[-1].heading, how))
    return write_all({**files, out / PAGE: Page(own.title, intro, sections).html()})


def page(comparison: Comparison, command: Sequence[str]) -> Page:
    """The verdict, the tables, the curves, what explains them, and how to make the page again."""
    compared = names.listed([*dict.fromkeys(names.method(c.method) for c in comparison.results)])
    summary = next(iter(comparison.results.values()))[0].summary
    source = [f"Data: {summary['data']}."] if summary.get("data") else []
    base, one = comparison.base, len(comparison.results) == 1
    about = "" if one else "Of all runs, except for what is compared:"
    used = made_with((summary.get("versions") or {}).items())
    said, ahead = verdict(comparison)
    results: list[PageBlock] = [*tables(comparison), *ahead, Note(notes(comparison))]
    return Page(
        f"{compared} on {names.data(base.data)}",
        [said],
        [
            Section("Results", results),
            _curves(comparison),
            *explained(
                charts.by_condition(comparison),
                charts.lines(comparison),
                base.cohort_size(),
                _devices(comparison, summary),
            ),
            *again(command, base.to_toml(), *source, *used, about=about),
        ],
    )


def tables(comparison: Comparison) -> list[Table]:
    """A row per method and values of other settings: a table per split and way of averaging.

    The columns are ratios of stragglers; with a fleet, what the simulated clock says.
    """
    groups: dict[str, list[Case]] = {}
    for case in comparison.results:
        average = names.average(case.average)
        groups.setdefault(f"{names.split(case.split)}, {average}", []).append(case)
    return [_table(comparison, cases, caption) for caption, cases in groups.items()]


def _table(comparison: Comparison, cases: Sequence[Case], caption: str) -> Table:
    clocked = bool(comparison.base.fleet)
    rows: dict[tuple[object, ...], dict[str, str]] = {}
    # By column, what cells are compared by. What looks the same in the table is the same.
    ranked: dict[str, dict[tuple[object, ...], float | None]] = {}
    for case in cases:
        row: tuple[object, ...] = (case.method, case.batches, case.more)
        waits = names.waits(case.method)
        known = list(tested(comparison, case).values())
        own = {"Method": charts.name(case) + " (waits)" * waits}
        own |= {setting_key(name): f"{value}" for name, value in case.more}
        if clocked:
            runs = comparison.clocked(case)
            column, found = at_end(comparison).capitalize(), _clocked(comparison, known, runs)
            ranked.setdefault(TO_TARGET, {})[row] = mean_time(runs)
        else:
            # The heading over the tables says that the percentages are of stragglers.
            condition = names.condition(comparison.base.depth, case.stragglers)
            column = condition.removesuffix(" stragglers")
            found = {column: spread(known, 4)}
        if clocked or not waits:
            mean = round(fmean(known), 3 if clocked else 4) if known else None
            ranked.setdefault(column, {})[row] = mean
        rows.setdefault(row, own).update(found)
    for column, values in ranked.items():
        for row in best(values, min if column in (TO_TARGET, "Loss") else max):
            rows[row][column] = bold(rows[row][column], True)
    return Table.of(rows.values(), caption)


def _clocked(
    comparison: Comparison, known: Sequence[float], runs: Sequence[Clocked]
) -> dict[str, str]:
    """The columns of a comparison by the simulated clock."""
    measure = at_end(comparison)
    timed = len(comparison.results) > 1 or comparison.goal is not None
    slowest = {"Slowest 10 %": spread([run.slowest for run in runs])}
    return {
        measure.capitalize(): spread(known),
        **(slowest if measure == "accuracy" else {}),
        "Rounds": f"{fmean(run.rounds for run in runs):.0f}",
        **({TO_TARGET: to_target(runs)} if timed else {}),
        "Waited": number(fmean(run.waited for run in runs) / comparison.base.cohort_size()),
        "Work lost": f"{fmean(run.lost_work for run in runs):.0%}",
        "Bytes lost": f"{fmean(run.lost_bytes for run in runs):.0%}",
    }


def to_target(runs: Sequence[Clocked]) -> str:
    """The mean time to the target, if all seeds reached it; else how many did."""
    if all(run.target is None for run in runs):
        return NONE
    if some := not_reached([run.to_target for run in runs]):
        return some
    times = [run.to_target for run in runs if run.to_target is not None]
    sd = f" ±{number(float(np.std(times, ddof=1)), 2)}" if len(times) > 1 else ""
    return number(fmean(times)) + sd


def notes(comparison: Comparison) -> str:
    """What was measured, and the meaning of columns and bold cells."""
    base, count, measure = comparison.base, seeds(comparison), at_end(comparison)
    setting = names.fleet(base) if base.fleet else f"depths {base.depth}"
    setting = "by ratio of stragglers" if not base.fleet and has_ratio(base.depth) else setting
    said = [
        f"Test {measure} of the model {base.given.get('model', base.model)} on "
        f"{names.data(base.data)} with {names.users(base)} after {budget(base)}, {setting}: "
        + (f"mean ± standard deviation over {count} seeds." if count > 1 else "one seed.")
    ]
    several = len(comparison.results) > 1
    if others := [setting_key(name) for name, _ in next(iter(comparison.results)).more]:
        said.append(f"What is said of {names.listed(others)} here is of the first value.")
    waiting = [names.method(c.method) for c in comparison.results if names.waits(c.method)]
    if waiting:
        listed = names.listed([*dict.fromkeys(waiting)])
        said.append(f"{listed} waits for all users in every round.")
    if not base.fleet:
        return " ".join([*said, "Bold: the best method with a deadline." * several]).strip()
    said += [text("comparison.slowest")] * (measure == "accuracy")
    if several or comparison.goal is not None:
        said.append(text("comparison.target", target=target(comparison)))
    said.append(text("comparison.lost"))
    return " ".join([*said, *["Bold: the best method."] * several])


def _curves(comparison: Comparison) -> Section:
    measure, over = charts.shown(comparison)
    title = f"{AXES[measure]} over {AXES[over].lower()}"
    band = ", mean over the seeds, with a band from the lowest to the highest"
    several = ". Click a method to hide it" * (len(comparison.results) > 1)
    about = f"{title}{band * (seeds(comparison) > 1)}{several}."
    # The page says elsewhere what a picture has in its title.
    return Section(title, [Chart(Figure(charts.curves(comparison).charts), about)])


def _devices(comparison: Comparison, summary: Mapping[str, Any]) -> list[str]:
    """What the devices are, and what their time is spent on."""
    if "round" not in summary:
        return []
    name, found = names.fleet_name(comparison.base), summary["round"]
    kind = name.partition(":")[0]
    counted = CLASSES[kind].about if kind in CLASSES else ""
    about = text(f"fleets.{kind}", about=counted) if kind in texts()["fleets"] else ""
    return [
        f"Devices: {name}. {about}".strip(),
        text("comparison.round", **found),
    ]
