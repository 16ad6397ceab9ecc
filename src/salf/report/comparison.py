"""A comparison as tables, as a picture and as a page."""

from collections.abc import Sequence
from pathlib import Path
from shlex import join

from rich.console import Console

from salf.common.files import write_whole
from salf.report import charts, names, seconds, voice
from salf.report.extra import check_extra
from salf.report.measured import lines, methods, ratios, seeds, test_accuracy
from salf.report.page import Block, Chart, Code, Page, Section
from salf.report.style import pictures
from salf.report.tables import Cell, Table
from salf.runs.compare import Case, Comparison
from salf.worlds.depth import has_ratio
from salf.worlds.fleet.named import GIVEN

NOT_MEASURED = "–"
PAGE = "report.html"


def print_tables(comparison: Comparison, console: Console, *, words: bool = True) -> None:
    """Print the test accuracies: a table per split and way of averaging.

    With a fleet, also print a summary in words.
    """
    console.print(_measured(comparison), markup=False, highlight=False, soft_wrap=True)
    for note in _notes(comparison, bold=console.color_system is not None):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    for table in tables(comparison):
        console.print()
        # A file has no width: nothing is folded to the 80 columns rich assumes there.
        console.print(table.rich(fold=console.is_terminal), crop=False)
    for sentence in seconds.sentences(comparison) if comparison.base.fleet and words else ():
        console.print()
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def write_report(comparison: Comparison, out: Path, command: Sequence[str]) -> list[Path]:
    """Write a picture of the rounds (PNG and SVG) and the page `report.html` into `out`.

    `command` are the arguments `salf` was called with, if it was. The picture is `accuracy`, or
    `loss` if no accuracy was measured. Returns the files written.
    """
    check_extra()
    measure = _measure(comparison)
    name = "accuracy" if measure == "accuracy" else "loss"
    over: charts.Over = "clock" if comparison.base.fleet else "round"
    picture = pictures(charts.curves(comparison, measure, titled=True, over=over))
    drawn = {name: picture}
    if comparison.base.fleet and voice.heard(comparison):
        drawn["voice"] = pictures(voice.figure(comparison, titled=True))
    # All are made before the first is written, so that an error leaves none behind.
    files: dict[Path, str | bytes] = {
        **{out / f"{n}.{kind}": each for n, made in drawn.items() for kind, each in made.items()},
        out / PAGE: page(comparison, command).html(),
    }
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def write_both(
    by_clock: Comparison, by_round: Comparison, out: Path, commands: Sequence[Sequence[str]]
) -> list[Path]:
    """Write a comparison over simulated seconds and one over rounds as one page, with pictures."""
    check_extra()
    first, second = page(by_clock, commands[0]), page(by_round, commands[1])
    both = Page(
        first.title,
        first.intro,
        [
            *sections(by_clock),
            Section("Without a clock: the paper's mixture of stragglers", second.intro),
            *sections(by_round)[:2],
            Section(
                "Reproduce this page",
                [*_again(by_clock, commands[0]), *_again(by_round, commands[1])],
            ),
        ],
    )
    over: dict[str, tuple[Comparison, charts.Over]] = {
        "accuracy": (by_clock, "clock"),
        "accuracy-per-round": (by_round, "round"),
    }
    drawn = {
        name: pictures(charts.curves(each, _measure(each), titled=True, over=axis))
        for name, (each, axis) in over.items()
    }
    files: dict[Path, str | bytes] = {
        out / f"{name}.{kind}": content
        for name, kinds in drawn.items()
        for kind, content in kinds.items()
    }
    files[out / PAGE] = both.html()
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def tables(comparison: Comparison) -> list[Table]:
    """Test accuracy, methods by ratios of stragglers: a table per split and way of averaging.

    With a fleet, what the simulated clock says of each method.
    """
    groups = dict.fromkeys((case.split, case.average) for case in comparison.results)
    if comparison.base.fleet:
        return [
            seconds.table(
                comparison,
                [case for case in comparison.results if (case.split, case.average) == group],
                _caption(*group),
            )
            for group in groups
        ]
    return [_table(comparison, split, average) for split, average in groups]


def page(comparison: Comparison, command: Sequence[str]) -> Page:
    """The comparison as a page."""
    base, compared = comparison.base, names.listed(_methods(comparison))
    long = seconds.budget(comparison) if base.fleet else f"{base.rounds} rounds"
    what = (
        f"{compared} train the model {base.given.get('model', base.model)} on "
        f"{names.data(base.data)} with {names.users(base)} for {long}, "
        f"{_seeds(comparison)}."
    )
    ceilings = [
        f"{name} has no deadline: in every round it waits for all users. It is "
        "the reference for the methods that do not wait."
        for name in _ceilings(comparison)
    ]
    return Page(
        title=f"{compared} on {names.data(base.data)}",
        intro=[f"{what} {_stragglers(comparison)}", *ceilings],
        sections=[*sections(comparison), _again_section(comparison, command)],
    )


def sections(comparison: Comparison) -> list[Section]:
    """What the page of a comparison shows; with a fleet, the accuracy over seconds first."""
    if not comparison.base.fleet:
        return [
            _accuracy_section(comparison),
            _rounds_section(comparison),
            _reach_section(comparison),
        ]
    return [
        _seconds_section(comparison),
        _rounds_section(comparison),
        _reach_section(comparison),
        *([voice.section(comparison)] if voice.heard(comparison) else []),
        _waste_section(comparison),
    ]


def _table(comparison: Comparison, split: str, average: str) -> Table:
    cases = [c for c in comparison.results if (c.split, c.average) == (split, average)]
    shown = sorted({case.stragglers for case in cases})
    best = {ratio: _best(comparison, cases, ratio) for ratio in shown}
    rows = []
    for method in dict.fromkeys(case.method for case in cases):
        waits = " (waits)" if names.waits(method) else ""
        row = [Cell(names.method(method) + waits)]
        for ratio in shown:
            spread = test_accuracy(comparison, Case(method, average, split, ratio))
            text = NOT_MEASURED if spread is None else str(spread)
            row.append(Cell(text, bold=method in best[ratio]))
        rows.append(row)
    columns = [names.condition(comparison.base.depth, ratio) for ratio in shown]
    # The heading over the tables says that the percentages are of stragglers.
    short = [column.removesuffix(" stragglers") for column in columns]
    return Table(["Method", *short], rows, _caption(split, average))


def _caption(split: str, average: str) -> str:
    return f"{names.split(split)}, {names.AVERAGES.get(average, average)}"


def _best(comparison: Comparison, cases: Sequence[Case], ratio: float) -> set[str]:
    """The best of the methods with a deadline, if there are several to choose from."""
    found = {
        case.method: round(spread.mean, 4)  # what looks the same in the table is the same
        for case in cases
        if case.stragglers == ratio and not names.waits(case.method)
        if (spread := test_accuracy(comparison, case)) is not None
    }
    top = max(found.values(), default=None)
    return {method for method, mean in found.items() if mean == top and len(found) > 1}


def _accuracy_section(comparison: Comparison) -> Section:
    blocks: list[Block] = [
        " ".join([_measured(comparison), *_notes(comparison)]),
        *tables(comparison),
    ]
    if any(test_accuracy(comparison, case) is not None for case in comparison.results):
        spread = _spread(comparison, "line")
        blocks.append(
            Chart(
                charts.final_accuracy(comparison),
                "Test accuracy of each method at the end, as in the tables.",
                f"Test accuracy at the end{spread}. The axis does not start at zero.",
            )
        )
        if has_ratio(comparison.base.depth) and len(ratios(comparison)) > 1:
            blocks.append(
                Chart(
                    charts.over_ratios(comparison),
                    "Test accuracy of each method over the ratio of stragglers, as in the tables.",
                    f"Test accuracy over the ratio of stragglers{spread}. "
                    "The axis does not start at zero.",
                )
            )
    return Section("Test accuracy", blocks)


def _seconds_section(comparison: Comparison) -> Section:
    measure = _measure(comparison)
    title = charts.MEASURES[measure]
    compared = names.listed(_lines(comparison))
    chart = Chart(
        charts.curves(comparison, measure, over="clock"),
        f"{title} over {seconds.budget(comparison)} of {compared}.",
        f"{title}{_spread(comparison, 'band')}. Click a method in the legend to show it alone.",
    )
    told = " ".join([_measured(comparison), *_notes(comparison)])
    return Section(
        f"{title} over simulated seconds",
        [chart, *seconds.sentences(comparison), *tables(comparison), told],
    )


def _waste_section(comparison: Comparison) -> Section:
    chart = Chart(
        charts.waste(comparison),
        "Seconds waited and work and bytes lost, by method.",
        "Mean over the seeds. A user waits if it finishes before its round ends. Work and bytes "
        "are lost if they contribute to no update: those of users that a method drops, and of "
        "layers that were started but not completed by the deadline.",
    )
    return Section("Waiting and wasted work", [chart])


def _rounds_section(comparison: Comparison) -> Section:
    measure = _measure(comparison)
    title = charts.MEASURES[measure]
    compared = names.listed(_lines(comparison))
    rounds = f"{comparison.base.rounds} rounds" if comparison.base.rounds else "the rounds"
    chart = Chart(
        charts.curves(comparison, measure),
        f"{title} over {rounds} of {compared}.",
        f"{title}{_spread(comparison, 'band')}. Click a method in the legend to show it alone.",
    )
    return Section(f"{title} over the rounds", [chart])


def _reach_section(comparison: Comparison) -> Section:
    return Section(
        "How many users reached each layer",
        [
            "Backpropagation starts at the last layer, so more users reach the later layers than "
            "the earlier ones. SALF uses all of this work: it averages each layer over the users "
            "that reached it. Dropping stragglers leaves every layer with the few users "
            "that finished in time.",
            Chart(
                charts.reach(comparison),
                "Number of users that updated each layer, by method and layer.",
                f"How many of {comparison.base.cohort_size()} users updated each layer: mean over "
                "rounds and seeds.",
            ),
        ],
    )


def _again_section(comparison: Comparison, command: Sequence[str]) -> Section:
    return Section("Reproduce this page", _again(comparison, command))


def _again(comparison: Comparison, command: Sequence[str]) -> list[Block]:
    summary = next(iter(comparison.results.values()))[0].summary
    blocks: list[Block] = [
        Code(join(["salf", *command])) if command else "Created in Python with `salf.compare`.",
        Code(comparison.base.to_toml(), "Config shared by all runs, except for what is compared"),
    ]
    if source := summary.get("data"):
        blocks.append(f"The data came from {source}.")
    if versions := summary.get("versions"):
        made_with = [f"{name} {version}" for name, version in versions.items()]
        blocks.append(f"Made with {names.listed(made_with)}.")
    return blocks


def _measure(comparison: Comparison) -> charts.Measure:
    """Accuracy, unless it was measured in no run (there may be no held-out data)."""
    runs = (result for results in comparison.results.values() for result in results)
    return "accuracy" if any(run.history.curve for run in runs) else "train_loss"


def _measured(comparison: Comparison) -> str:
    base = comparison.base
    if base.fleet:
        spread = ", mean ± standard deviation over " if seeds(comparison) > 1 else ", "
        what = "accuracy" if seconds.classifies(comparison) else "loss"
        return (
            f"Test {what} on {names.data(base.data)} after {seconds.budget(comparison)} with "
            f"{names.fleet(base)}{spread}{_seeds(comparison)}."
        )
    by = " by ratio of stragglers" if has_ratio(comparison.base.depth) else ""
    spread = "mean ± standard deviation over " if seeds(comparison) > 1 else ""
    return (
        f"Test accuracy on {names.data(base.data)} after {base.rounds} rounds{by}, "
        f"{spread}{_seeds(comparison)}."
    )


def _notes(comparison: Comparison, *, bold: bool = True) -> list[str]:
    if comparison.base.fleet:
        best = ["Bold: the best method."] if bold and len(comparison.results) > 1 else []
        return [*best, *seconds.notes(comparison)]
    notes = []
    if bold and sum(not names.waits(method) for method in methods(comparison)) > 1:
        notes.append("Bold: the best method with a deadline.")
    if len({case.average for case in comparison.results}) > 1:
        ceilings = _ceilings(comparison)
        notes += [f"{name} is the same however layers are averaged." for name in ceilings]
    return notes


def _stragglers(comparison: Comparison) -> str:
    if comparison.base.fleet:
        base = comparison.base
        fleet = "their own" if base.fleet == GIVEN else f"the fleet {base.fleet}"
        deadline = names.deadline(base.deadline)
        return (
            f"Users have devices of {fleet}, whose times follow from the work of each layer. A "
            f"round ends when all users are done or at the deadline ({deadline}). By then, "
            "backpropagation has reached only some of the layers on slow devices."
        )
    if not has_ratio(comparison.base.depth):
        return f"The depth of users at the deadline follows {comparison.base.depth}."
    shares = " or ".join(names.percent(ratio) for ratio in ratios(comparison))
    return (
        f"In every round, a share of the users ({shares}) is drawn at random to be stragglers: at "
        "the deadline, their backpropagation has reached only some of the layers."
    )


def _spread(comparison: Comparison, mark: str) -> str:
    """What a chart's line or band means, as part of a caption."""
    if seeds(comparison) == 1:
        return ""
    return f", mean over the seeds. The {mark} goes from the lowest to the highest seed"


def _methods(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison)]


def _lines(comparison: Comparison) -> list[str]:
    return [names.variant(*key) for key in lines(comparison)]


def _ceilings(comparison: Comparison) -> list[str]:
    return [names.method(key) for key in methods(comparison) if names.waits(key)]


def _seeds(comparison: Comparison) -> str:
    count = seeds(comparison)
    return f"{count} seeds" if count > 1 else "one seed"
