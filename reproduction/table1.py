"""Table I: test accuracy on MNIST by method and ratio of stragglers, averaged both ways."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.comparisons import CONVENTIONS, HEADINGS, far_apart
from reproduction.item import Found, Outcome, Trained
from reproduction.paper import published
from reproduction.sizes import AVERAGES, METHODS, RATIOS, Size
from reproduction.statistics import drawn
from reproduction.table1_claims import CLOSE, MODELS, Cells, TableKey, beside, findings, place
from reproduction.texts import TEXTS, about, heading, text
from salf.common.figures import Axis, Figure, Lines, Point
from salf.common.intervals import interval, over_seeds
from salf.report import names
from salf.report.page import PageBlock
from salf.report.tables import Table, bold
from salf.runs.config import Config


class Table1(Trained):
    """Table I of the paper [tbl:summerizing_architectures]."""

    name = "table1"
    title = text("table1", "title")

    def configs(self, size: Size) -> Mapping[TableKey, Sequence[Config]]:
        """The runs of every cell."""
        return {
            (model, method, average, ratio): size.seeded(model, method, average, ratio)
            for model in MODELS
            for ratio in RATIOS
            for average in AVERAGES
            for method in METHODS
        }

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The table beside the paper's, and what the paper says about it."""
        measured = {key: found.accuracies(c) for key, c in self.configs(size).items()}
        cells = Cells({key: values for key, values in measured.items() if values is not None})
        return Outcome(
            rows=_rows(cells),
            figure=_figure(cells, size),
            findings=findings(cells),
            blocks=[*_tables(cells), *_far_apart(cells), *_far_off(cells)],
            **about("table1", seeds=over_seeds(size.seeds), **size.configs),
        )


def _rows(cells: Cells) -> list[dict[str, Any]]:
    return [
        {
            "model": model,
            "method": method,
            "average": "" if names.waits(method) else average,
            "stragglers": 0.0 if names.waits(method) else ratio,
            "seed": seed,
            "test_accuracy": value,
            "paper": published(model, method, ratio),
        }
        for (model, method, average, ratio), values in cells.values.items()
        if _shown_once(method, average, ratio)
        for seed, value in enumerate(values)
    ]


def _shown_once(method: str, average: str, ratio: float) -> bool:
    """FedAvg has one run, whatever the others' averaging and ratio."""
    return not names.waits(method) or (average, ratio) == (AVERAGES[0], RATIOS[0])


def _tables(cells: Cells) -> list[PageBlock]:
    """One per model: for every method and ratio the paper's number and ours, both ways."""
    tables: list[PageBlock] = []
    for model in MODELS:
        far = {
            (method, ratio)
            for method, ratio, ours, theirs in beside(cells, model)
            if ours is not None and abs(ours - theirs) > CLOSE
        }
        rows: list[list[str]] = []
        for method in METHODS:
            for ratio in RATIOS[:1] if names.waits(method) else RATIOS:
                theirs = published(model, method, ratio)
                seeds = {a: cells.get(model, method, a, ratio).seeds for a in AVERAGES}
                ours = {a: "–" if s is None else str(interval(s)) for a, s in seeds.items()}
                rows.append(
                    [
                        names.method(method),
                        "none" if names.waits(method) else names.percent(ratio),
                        "–" if theirs is None else f"{theirs:.2f}",
                        bold(ours["all"], (method, ratio) in far),
                        ours["reached"],
                    ]
                )
        columns = ["Method", "Stragglers", "Paper", "As published", "As the equations say"]
        tables.append(Table(columns, rows, model.upper()))
    return tables


def _far_apart(cells: Cells) -> list[PageBlock]:
    """One sentence for each cell whose mean says little."""
    told = []
    for (model, method, average, ratio), seeds in cells.values.items():
        if _shown_once(method, average, ratio):
            convention = "" if names.waits(method) else f", {CONVENTIONS[average].lower()}"
            told.append(far_apart(f"{place(model, ratio, method)}{convention}", seeds))
    return [sentence for sentence in told if sentence]


def _far_off(cells: Cells) -> list[PageBlock]:
    """Say which numbers are far from the paper's, and why."""
    far = [
        (method, f"{place(model, ratio)} {ours:.3f} ({theirs:.2f})")
        for model in MODELS
        for method, ratio, ours, theirs in beside(cells, model)
        if ours is not None and abs(ours - theirs) > CLOSE
    ]
    if not far:
        return [text("table1", "near", close=CLOSE)]
    blocks: list[PageBlock] = [text("table1", "far", close=CLOSE)]
    for method in dict.fromkeys(method for method, _ in far):
        listed = "; ".join(told for name, told in far if name == method)
        why = TEXTS["table1"]["reasons"].get(method, "Nothing is known about why.")
        blocks.append(f"{names.method(method)}, ours and in brackets the paper's: {listed}. {why}")
    return blocks


def _figure(cells: Cells, size: Size) -> Figure:
    points = [
        Point(
            names.method(method),
            ratio,
            **drawn(interval(seeds)),
            reference=published(model, method, ratio),
            panel=f"{model.upper()}\n{HEADINGS[average]}",
        )
        for (model, method, average, ratio), seeds in cells.values.items()
    ]
    chart = Lines(
        points,
        names.lines(METHODS),
        x=Axis("Stragglers", percent=True, ticks=RATIOS),
        y=Axis("Test accuracy"),
        interval="bar",
        reference="diamonds",
        height=230,
        wrap=len({average for _, _, average, _ in cells.values}),
    )
    return Figure([chart], **heading("table1", size=size, seeds=over_seeds(size.seeds)))
