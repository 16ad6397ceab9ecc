"""The benchmark's results: tables for the terminal and the docs, and a page."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from rich.console import Console

from salf.bench import results as ranking
from salf.bench.results import BenchRow, CellResult, records
from salf.bench.suite import POINTS, BenchCell, Suite
from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.common.files import csv_of, write_all
from salf.common.intervals import Interval, interval, over_seeds
from salf.report import names
from salf.report.page import Chart, Note, Page, PageBlock, Section, again, made_with
from salf.report.tables import NONE, Table, best, bold, not_reached, tell
from salf.report.texts import text
from salf.runs.compare import SHARE

PAGE, CSV = "report.html", "results.csv"
SALF, SIGNS = "salf", ("ahead", "tie", "behind")
Show = Callable[[CellResult], str]


class Standings:
    """Rows of the benchmark, the best first; `own` are the reader's methods, which stand out."""

    def __init__(self, suite: Suite, rows: Sequence[BenchRow], own: Collection[str] = ()) -> None:
        self.suite, self.rows = suite, ranking.ordered(rows, suite)
        self.own = [row for row in self.rows if row.name in own and len(own) < len(rows)]
        self.means = ranking.mean_ranks(rows, suite)

    def print(self, console: Console) -> None:
        """Print the ranks, the accuracies and the reasons for missing results."""
        for table in (self.ranks(), *self.beside_salf(), *map(self.accuracies, self.suite.data)):
            tell(console, table, "")
        tell(console, *self.notes(), *self.gaps())

    def write(self, out: Path, command: Sequence[str]) -> list[Path]:
        """Write results.csv and the page."""
        table = csv_of([*records(self.suite, self.rows)])
        return write_all({out / CSV: table, out / PAGE: self.page(command).html()})

    def ranks(self) -> Table:
        """The mean rank over all cells and over each scenario's; and who is ahead of SALF."""
        most = max((count for _, count in self.means.values()), default=0)
        body = {row.name: {"Method": name(row), "Mean rank": NONE} for row in self.rows}
        for key, (mean, count) in self.means.items():
            body[key]["Mean rank"] = f"{mean:.1f}" + f" (of {count})" * (count < most)
        for scenario in self.suite.scenarios:
            found = ranking.mean_ranks(self.rows, self.suite.only([scenario.key]))
            for key, row in body.items():
                row[scenario.title] = f"{found[key][0]:.3g}" if key in found else NONE
        for each in self.rows if self._salf else ():
            signs = [_sign(found) for found in self.differences(each).values()]
            counts = [str(signs.count(sign)) for sign in SIGNS]
            body[each.name][f"SALF: {', '.join(SIGNS)}"] = ", ".join(counts) if signs else NONE
        return Table.of(body.values(), "Rank by accuracy at the budget", self._own_names)

    def differences(self, row: BenchRow) -> dict[BenchCell, Interval]:
        """The accuracy less SALF's, paired by seed, in every cell in which both have one."""
        found = {}
        for cell in self.suite.cells if self._salf not in (None, row) else ():
            ours, theirs = (
                {run.seed: run.accuracy for run in each.cells.get(cell.key, CellResult()).runs}
                for each in (row, self._salf or row)
            )
            pairs = [(a, theirs.get(seed)) for seed, a in ours.items()]
            apart = [round(a - b, 6) for a, b in pairs if a is not None and b is not None]
            if apart:
                found[cell] = interval(apart)
        return found

    def beside_salf(self) -> list[Table]:
        """The reader's own methods beside SALF, a table each."""
        tables = []
        for row in self.own:
            lines = [
                {
                    "Scenario": f"{cell.scenario.title}, {names.data(cell.data)}",
                    name(row): _spread(row.cells[cell.key], "accuracy"),
                    "less SALF": each.signed(),
                    "SALF": _sign(each),
                }
                for cell, each in self.differences(row).items()
            ]
            if lines:
                caption = f"{name(row)} and SALF: paired by seed, mean and 95 % interval"
                tables.append(Table.of(lines, caption))
        return tables

    def accuracies(self, data: str) -> Table:
        """The accuracy at the budget, methods by scenarios; the best of each scenario is bold."""
        caption = f"Test accuracy at the budget, {names.data(data)}"
        return self._by_scenario(data, _accuracy, caption, ranked=True)

    def _by_scenario(self, data: str, show: Show, caption: str, ranked: bool = False) -> Table:
        body = [{"Method": name(row)} for row in self.rows]
        for cell in (cell for cell in self.suite.cells if cell.data == data):
            first = best(ranking.in_cell(self.rows, cell), min) if ranked else set()
            for row, cells in zip(self.rows, body, strict=True):
                outcome = row.cells.get(cell.key)
                shown = NONE if outcome is None or outcome.refused else show(outcome)
                cells[cell.scenario.title] = bold(shown, row.name in first)
        return Table.of(body, caption, self._own_names)

    def notes(self) -> list[str]:
        """The meaning of the tables."""
        suite = self.suite
        rates = names.listed([f"{rate:g}" for rate in suite.rates])
        seeds, tuning = over_seeds(len(suite.seeds)).capitalize(), [*map(str, suite.tuning_seeds)]
        tuned = text("bench.tuning", seeds=seeds, rates=rates, tuning=names.listed(tuning))
        return [tuned, text("bench.ranks")]

    def gaps(self) -> list[str]:
        """Where methods have no result, and why."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            for cell in self.suite.cells:
                outcome = row.cells.get(cell.key)
                if outcome is None:
                    what, why = "was not run in", "."
                elif outcome.refused or outcome.failed:
                    what = "cannot run in" if outcome.refused else "failed in"
                    why = f": {outcome.refused or outcome.failed}"
                else:
                    continue
                where = f"{cell.scenario.title} ({names.data(cell.data)})"
                found.setdefault((f"{name(row)} {what}", why), []).append(where)
        return [f"{what} {names.listed(places)}{why}" for (what, why), places in found.items()]

    def page(self, command: Sequence[str]) -> Page:
        """The ranks, accuracies and curves, other measures, the scenarios."""
        suite, beside = self.suite, self.beside_salf()
        made = sorted({package for row in self.rows for package in row.made_with.items()})
        return Page(
            f"The straggler benchmark: suite {suite.name}, version {suite.version}",
            [
                *self._verdict(),
                text("bench.about", methods=len(self.rows), scenarios=len(suite.scenarios)),
                text("bench.clock"),
            ],
            [
                *([Section("Your methods beside SALF", beside)] if beside else []),
                Section("Ranks", [self.ranks(), *map(Note, [*self.notes(), *self.gaps()])]),
                *map(self._of_data, suite.data),
                Section("Scenarios", _scenarios(suite)),
                *again(command, "", *made_with(made)),
            ],
        )

    def _verdict(self) -> list[str]:
        """Where the reader's own methods stand, or else who leads."""
        ranked = [row for row in self.rows if row.name in self.means]
        told = [
            f"{name(row)} has a mean rank of {self.means[row.name][0]:.1f}, place {place} of "
            f"{len(ranked)}; beside SALF: {_counted(self.differences(row).values())}."
            for place, row in enumerate(ranked, 1)
            if row in self.own
        ]
        if told or not ranked:
            return told
        first, beside = ranked[0], _counted(self.differences(ranked[0]).values())
        more = f"; beside SALF: {beside}" * (first.name != SALF)
        return [f"{name(first)} has the lowest mean rank, {self.means[first.name][0]:.1f}{more}."]

    def _of_data(self, data: str) -> Section:
        title, goal = names.data(data), f"{100 * SHARE:g} % of the reference"
        chart = Chart(self.curves(data), text("bench.curves", data=title))
        measures: dict[str, Show] = {
            f"Time to {goal}": to_target,
            "Accuracy on the data of the slowest tenth": lambda it: _spread(it, "slowest"),
            "Work and bytes lost": _lost,
        }
        tables = [self._by_scenario(data, show, what) for what, show in measures.items()]
        return Section(
            title, [self.accuracies(data), chart, Note(text("bench.measures", goal=goal)), *tables]
        )

    def curves(self, data: str) -> Figure:
        """Accuracy over the part of the budget that is used, a panel per scenario."""
        points = [
            Point(name(row), (point + 1) / POINTS, accuracy, panel=cell.scenario.title)
            for cell in self.suite.cells
            for row in self.rows
            if cell.data == data and cell.key in row.cells
            for point, accuracy in enumerate(row.cells[cell.key].curve)
            if accuracy is not None
        ]
        drawn = names.lines([row.entrant.method for row in self.rows])
        lines = [
            Line(name(row), line.colour, row.entrant.settings.get("batches") == "equal-time")
            for row, line in zip(self.rows, drawn, strict=True)
        ]
        x, y = Axis("Part of the budget", percent=True), Axis("Accuracy", domain=(0, 1))
        return Figure([Lines(points, lines, x, y, height=170, wrap=3)])

    @cached_property
    def _salf(self) -> BenchRow | None:
        return next((row for row in self.rows if row.name == SALF), None)

    @property
    def _own_names(self) -> set[str]:
        return {name(row) for row in self.own}


def name(row: BenchRow) -> str:
    """A row's method as people write it."""
    entrant = row.entrant
    rest = row.name.removeprefix(entrant.method)
    follows = rest != row.name and not rest[:1].isalnum()
    shown = names.method(entrant.method) + rest if follows else row.name
    return shown.replace("+", ", ") + (" (waits)" if names.waits(entrant.method) else "")


def to_target(outcome: CellResult) -> str:
    """The mean time, if all seeds reached the target; else how many did."""
    if all(run.target is None for run in outcome.runs):
        return NONE
    if (found := outcome.over_seeds("to_target")) is None:
        return not_reached([run.to_target for run in outcome.runs])
    unit, hours = (3600, " h") if found.mean >= 7200 else (1, "")
    half = "" if found.half is None else f" ±{found.half / unit:.2g}"
    return f"{found.mean / unit:.3g}{half}{hours}"


def _sign(found: Interval) -> str:
    """Whether a method is ahead of SALF, as far as the seeds can tell."""
    return SIGNS[0 if found.low > 0 else 2 if found.high < 0 else 1]


def _counted(found: Iterable[Interval]) -> str:
    signs = [_sign(each) for each in found]
    counts = [f"{sign} in {signs.count(sign)}" for sign in dict.fromkeys(signs)]
    return f"{names.listed(counts)} of {len(signs)} cells" if signs else "not compared"


def _accuracy(outcome: CellResult) -> str:
    return "failed" if outcome.failed else _spread(outcome, "accuracy")


def _spread(outcome: CellResult, what: str) -> str:
    return str(outcome.over_seeds(what) or NONE)


def _lost(outcome: CellResult) -> str:
    work, sent = outcome.over_seeds("lost_work"), outcome.over_seeds("lost_bytes")
    return NONE if work is None or sent is None else f"{work.mean:.0%} / {sent.mean:.0%}"


def _scenarios(suite: Suite) -> list[PageBlock]:
    found: list[PageBlock] = []
    for scenario in suite.scenarios:
        budget = f"{scenario.rounds} rounds"
        if scenario.clocked:
            days = scenario.budget / 86_400
            budget = names.duration(scenario.budget) if days < 1 else f"{days:g} days"
            budget += f", deadline {names.duration(scenario.settings['deadline'])}"
        found.append(f"{scenario.title} ({scenario.key}; {budget}): {scenario.about}")
    return found
