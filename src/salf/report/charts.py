"""Figures of a comparison: accuracy over rounds or simulated seconds, and its runs by condition."""

from collections.abc import Sequence
from dataclasses import replace

from salf.common.figures import Axis, Figure, Line, Lines
from salf.report import names
from salf.report.measured import seeds
from salf.report.parts import AXES, Measure, Over, curve
from salf.runs.compare import Case, Comparison
from salf.runs.run import Result

PARTS = ("split", "average", "more", "stragglers")  # that tell panels apart


def headings(
    comparison: Comparison, case: Case, *, apart: bool = True, by: Sequence[str] = PARTS
) -> list[str]:
    """What tells a case's panel apart from others; or what all panels have in common."""
    cases, base = list(comparison.results), comparison.base
    found = {
        "split": names.split(case.split),
        "average": names.average(case.average),
        "more": names.values(case.more),
        "stragglers": names.fleet(base)
        if base.fleet
        else names.condition(base.depth, case.stragglers),
    }
    several = {part for part in PARTS if len({getattr(each, part) for each in cases}) > 1}
    return [found[part] for part in by if (part in several) == apart and found[part]]


def shown(comparison: Comparison) -> tuple[Measure, Over]:
    """Accuracy, unless it was measured in no run (there may be no held-out data), over what."""
    runs = (run for results in comparison.results.values() for run in results)
    measure: Measure = "accuracy" if any(run.history.curve for run in runs) else "train_loss"
    return measure, "clock" if comparison.base.fleet else "round"


def curves(comparison: Comparison) -> Figure:
    """Accuracy or loss over simulated seconds or rounds: mean, lowest and highest of the seeds."""
    base, (measure, over) = comparison.base, shown(comparison)
    points = [
        point
        for case, results in comparison.results.items()
        for point in curve(
            [run.history.rows for run in results],
            measure,
            over,
            name(case),
            "\n".join(headings(comparison, case)),
        )
    ]
    last = max([point.x for point in points], default=1.0)
    if over == "clock":
        last = max(last, base.seconds or 0.0)
    x, y = Axis(AXES[over], domain=(0, last)), Axis(AXES[measure])
    chart = Lines(points, lines(comparison), x, y, height=280 if over == "clock" else 200)
    count = seeds(comparison)
    spread = f"mean of {count} seeds, band from the lowest to the highest"
    shared = headings(comparison, next(iter(comparison.results)), apart=False)
    subtitle = "; ".join([*shared, spread if count > 1 else "one seed"])
    title = f"{base.given.get('model', base.model)} on {names.data(base.data)}, {names.users(base)}"
    return Figure([chart], title, [subtitle])


def by_condition(comparison: Comparison) -> dict[str, list[Result]]:
    """The runs by method and stragglers, on which it depends who reaches what, and little else."""
    first, found = next(iter(comparison.results)), dict[str, list[Result]]()
    for case, results in comparison.results.items():
        if (case.split, case.average, case.more) == (first.split, first.average, first.more):
            told = [name(case), *headings(comparison, case, by=("stragglers",))]
            found[", ".join(told)] = results
    return found


def name(case: Case) -> str:
    """A method with its batches."""
    return names.variant(case.method, case.batches)


def lines(comparison: Comparison) -> list[Line]:
    """A line per method and way to size batches.

    On a clock FedAvg is no level to compare others with: dashes are for equal-time batches.
    """
    variants = list(dict.fromkeys((case.method, case.batches) for case in comparison.results))
    several = len({batches for _, batches in variants}) > 1
    return [
        replace(
            line,
            name=names.variant(method, batches),
            dashed=several and batches != "equal" if comparison.base.fleet else line.dashed,
        )
        for line, (method, batches) in zip(
            names.lines([method for method, _ in variants]), variants, strict=True
        )
    ]
