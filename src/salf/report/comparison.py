"""A comparison as tables, as a picture and as a page."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from salf.report import charts, names, seconds
from salf.report.measured import data, methods, ratios, seeds, test_accuracy
from salf.report.page import Chart, Page, PageBlock, Section, again, made_with
from salf.report.style import pictures, write
from salf.report.tables import Table, best, bold, tell
from salf.runs.compare import Case, Comparison
from salf.runs.settings import key as setting_key
from salf.worlds.depth import has_ratio

NOT_MEASURED = "–"
PAGE = "report.html"


def print_tables(comparison: Comparison, console: Console, *, words: bool = True) -> None:
    """Print the test accuracies: a table per split and way of averaging.

    With a fleet, also print a summary in words.
    """
    bold = console.color_system is not None
    tell(console, _measured(comparison), *_notes(comparison, bold=bold))
    said = seconds.sentences(comparison) if comparison.base.fleet and words else []
    for table in tables(comparison):
        tell(console, "", table)
    for sentence in said:
        tell(console, "", sentence)


def write_report(comparison: Comparison, out: Path, command: Sequence[str]) -> list[Path]:
    """Write a picture of the rounds (PNG and SVG) and the page `report.html` into `out`.

    `command` are the arguments `salf` was called with, if it was. The picture is `accuracy`, or
    `loss` if no accuracy was measured. Returns the files written.
    """
    measure = _measure(comparison)
    name = "accuracy" if measure == "accuracy" else "loss"
    files = _picture(comparison, out / name)
    if comparison.base.fleet and charts.heard(comparison):
        files |= pictures(charts.voice(comparison, titled=True), out / "voice")
    return write({**files, out / PAGE: page(comparison, command).html()})


def write_both(
    by_clock: Comparison, by_round: Comparison, out: Path, commands: Sequence[Sequence[str]]
) -> list[Path]:
    """Write a comparison over simulated seconds and one over rounds as one page, with pictures."""
    pages = [page(*each) for each in zip((by_clock, by_round), commands, strict=True)]
    first, second = pages
    both = Page(
        first.title,
        first.intro,
        [
            *sections(by_clock),
            Section("Without a clock: the paper's mixture of stragglers", second.intro),
            *sections(by_round)[:2],
            Section(
                "Reproduce this page",
                [block for each in pages for block in each.sections[-1].blocks],
            ),
        ],
    )
    pictured = _picture(by_clock, out / "accuracy")
    pictured |= _picture(by_round, out / "accuracy-per-round")
    return write({**pictured, out / PAGE: both.html()})


def _picture(comparison: Comparison, path: Path) -> dict[Path, str | bytes]:
    over: charts.Over = "clock" if comparison.base.fleet else "round"
    chart = charts.curves(comparison, _measure(comparison), titled=True, over=over)
    return pictures(chart, path)


def tables(comparison: Comparison) -> list[Table]:
    """Test accuracy, methods by ratios of stragglers: a table per split and way of averaging.

    With a fleet, what the simulated clock says of each method.
    """
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in comparison.results:
        groups.setdefault((case.split, case.average), []).append(case)
    table = seconds.table if comparison.base.fleet else _table
    return [
        table(comparison, cases, f"{names.split(split)}, {names.AVERAGES.get(average, average)}")
        for (split, average), cases in groups.items()
    ]


def page(comparison: Comparison, command: Sequence[str]) -> Page:
    """The comparison as a page."""
    base, compared = comparison.base, names.listed(_methods(comparison))
    what = (
        f"{compared} train the model {base.given.get('model', base.model)} on "
        f"{data(comparison)} with {names.users(base)} for {seconds.budget(comparison)}, "
        f"{_seeds(comparison)}."
    )
    ceilings = [
        f"{name} has no deadline: in every round it waits for all users. It is "
        "the reference for the methods that do not wait."
        for name in _ceilings(comparison)
    ]
    summary = next(iter(comparison.results.values()))[0].summary
    source = summary.get("data")
    how = again(
        command,
        base.to_toml(),
        *([f"Data: {source}."] if source else []),
        *made_with((summary.get("versions") or {}).items()),
        about="Config shared by all runs, except for what is compared",
    )
    return Page(
        title=f"{compared} on {data(comparison)}",
        intro=[f"{what} {_stragglers(comparison)}", *ceilings],
        sections=[*sections(comparison), how],
    )


def sections(comparison: Comparison) -> list[Section]:
    """The results; with a fleet, the accuracy over seconds first."""
    if not comparison.base.fleet:
        first = _accuracy_section(comparison)
        return [first, _curves_section(comparison, "round"), _reach_section(comparison)]
    return [
        _curves_section(comparison, "clock"),
        _curves_section(comparison, "round"),
        _reach_section(comparison),
        *([_voice_section(comparison)] if charts.heard(comparison) else []),
    ]


def _table(comparison: Comparison, cases: Sequence[Case], caption: str) -> Table:
    shown = sorted({case.stragglers for case in cases})
    found = {(c.method, c.more, c.stragglers): test_accuracy(comparison, c) for c in cases}
    top = {
        key
        for ratio in shown
        for key in best(
            {
                key: None if spread is None else round(spread.mean, 4)
                for key, spread in found.items()
                if key[2] == ratio and not names.waits(key[0])
            }
        )
    }
    rows = []
    for method, more in dict.fromkeys((case.method, case.more) for case in cases):
        row = [names.method(method) + " (waits)" * names.waits(method)]
        row += [f"{value}" for _, value in more]
        for ratio in shown:
            spread = found.get((method, more, ratio))
            row.append(bold(str(spread) if spread else NOT_MEASURED, (method, more, ratio) in top))
        rows.append(row)
    columns = [names.condition(comparison.base.depth, ratio) for ratio in shown]
    # The heading over the tables says that the percentages are of stragglers.
    others = [setting_key(name) for name, _ in cases[0].more]
    return Table(
        ["Method", *others, *(c.removesuffix(" stragglers") for c in columns)], rows, caption
    )


def _accuracy_section(comparison: Comparison) -> Section:
    blocks: list[PageBlock] = [_told(comparison), *tables(comparison)]
    measured = any(test_accuracy(comparison, case) is not None for case in comparison.results)
    if measured and has_ratio(comparison.base.depth) and len(ratios(comparison)) > 1:
        caption = f"Test accuracy over the ratio of stragglers{_spread(comparison, 'line')}."
        blocks.append(
            Chart(charts.over_ratios(comparison), f"{caption} The axis does not start at zero.")
        )
    return Section("Test accuracy", blocks)


def _curves_section(comparison: Comparison, over: charts.Over) -> Section:
    """The curves; over seconds, the results in words and the tables too."""
    measure, clocked = _measure(comparison), over == "clock"
    title = f"{charts.MEASURES[measure]} over {'simulated seconds' if clocked else 'the rounds'}"
    chart = Chart(
        charts.curves(comparison, measure, over=over),
        f"{title}{_spread(comparison, 'band')}. Click a method in the legend to show it alone.",
    )
    if not clocked:
        return Section(title, [chart])
    said: list[PageBlock] = [*seconds.sentences(comparison), *tables(comparison), _told(comparison)]
    return Section(title, [chart, *said])


def _reach_section(comparison: Comparison) -> Section:
    """How many users updated each layer: mean over rounds and seeds, a table per condition."""
    conditions: dict[str, list[list[str]]] = {}
    for case in charts.of_first_panel(comparison):
        results = comparison.results[case]
        layers = results[0].summary.get("layers") or [""] * len(results[0].history.rows[0].reached)
        counts = np.mean([row.reached for run in results for row in run.history.rows], axis=0)
        row = [names.variant(case.method, case.batches), *(f"{count:.1f}" for count in counts)]
        condition = ", ".join(
            filter(None, (charts.heading(comparison.base, case, p) for p in ("more", "stragglers")))
        )
        conditions.setdefault(condition, []).append(row)
    columns = ["Method", *names.layers(layers)]
    return Section(
        "How many users reached each layer",
        [
            f"Of {comparison.base.cohort_size()} users, on average over rounds and seeds. "
            "Backpropagation starts at the last layer, so more users reach the later layers.",
            *(Table(columns, rows, condition) for condition, rows in conditions.items()),
        ],
    )


def _voice_section(comparison: Comparison) -> Section:
    return Section(
        charts.VOICE,
        [
            "A user's voice is its part of the weight applied in all steps, averaged over the "
            "layers. An unbiased method gives every user the voice that it has with FedAvg.",
            Chart(
                charts.voice(comparison),
                "Left: each class's part of the voice; black marks show its part of the data. "
                "Right: users sorted by their voice; the line marks an equal part. Mean over the "
                "seeds.",
            ),
        ],
    )


def _measure(comparison: Comparison) -> charts.Measure:
    """Accuracy, unless it was measured in no run (there may be no held-out data)."""
    runs = (result for results in comparison.results.values() for result in results)
    return "accuracy" if any(run.history.curve for run in runs) else "train_loss"


def _told(comparison: Comparison) -> str:
    return " ".join([_measured(comparison), *_notes(comparison)])


def _measured(comparison: Comparison) -> str:
    base, several = comparison.base, seeds(comparison) > 1
    what = "loss" if base.fleet and not seconds.classifies(comparison) else "accuracy"
    by = " by ratio of stragglers" * has_ratio(base.depth)
    return (
        f"Test {what} on {data(comparison)} after {seconds.budget(comparison)}"
        f"{f' with {names.fleet(base)}' if base.fleet else by}, "
        f"{'mean ± standard deviation over ' * several}{_seeds(comparison)}."
    )


def _notes(comparison: Comparison, *, bold: bool = True) -> list[str]:
    others = [setting_key(name) for name, _ in next(iter(comparison.results)).more]
    notes = [f"Compared by {names.listed(others)}, too."] if others else []
    headed = ("model", "users", "fleet", "depth", "deadline")
    if said := [name for name in others if name in headed]:
        notes[0] += f" What is said of {names.listed(said)} is of the first value."
    if comparison.base.fleet:
        best = ["Bold: the best method."] * (bold and len(comparison.results) > 1)
        return [*notes, *best, *seconds.notes(comparison)]
    if bold and sum(not names.waits(method) for method in methods(comparison)) > 1:
        notes.append("Bold: the best method with a deadline.")
    if len({case.average for case in comparison.results}) > 1:
        ceilings = _ceilings(comparison)
        notes += [f"{name} is the same however layers are averaged." for name in ceilings]
    return notes


def _stragglers(comparison: Comparison) -> str:
    base = comparison.base
    if base.fleet:
        return (
            f"Devices: {names.fleet_name(base)}; times follow from the work of each layer. A "
            "round ends when all users are done or at the deadline "
            f"({names.deadline(base.deadline)}). By then, backpropagation has reached only some "
            "of the layers on slow devices."
        )
    if not has_ratio(base.depth):
        return f"The depth of users at the deadline follows {base.depth}."
    shown = " or ".join(names.percent(ratio) for ratio in ratios(comparison))
    return (
        f"In every round, some of the users ({shown}) are drawn at random to be stragglers: at "
        "the deadline, their backpropagation has reached only some of the layers."
    )


def _spread(comparison: Comparison, mark: str) -> str:
    """The meaning of a chart's line or band, as part of a caption."""
    if seeds(comparison) == 1:
        return ""
    return f", mean over the seeds. The {mark} goes from the lowest to the highest seed"


def _methods(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison)]


def _ceilings(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison) if names.waits(key)]


def _seeds(comparison: Comparison) -> str:
    count = seeds(comparison)
    return f"{count} seeds" if count > 1 else "one seed"
