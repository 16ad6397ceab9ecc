"""Charts of the benchmark: accuracies as a heat map, and over the budget."""

from collections.abc import Callable, Sequence

from salf.bench import ranking
from salf.bench.results import BenchRow
from salf.bench.suite import POINTS, Suite
from salf.report import names
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point, figure
from salf.report.style import INK, Axis, Records, Spec, named, of, spec

Name = Callable[[BenchRow], str]
_FAR = 0.2  # below the best of a scenario: as light as it gets


def accuracy_map(suite: Suite, rows: Sequence[BenchRow], data: str, name: Name) -> Spec:
    """The accuracy of every method in every scenario, shaded by its distance to the best."""
    records: Records = []
    for cell in (cell for cell in suite.cells if cell.data == data):
        found = {
            row: score
            for row in rows
            if cell.key in row.cells
            if (score := ranking.score(row.cells[cell.key])) is not None
        }
        best = max(found.values(), default=0.0)
        records += [
            {
                "method": name(row),
                "scenario": cell.scenario.title,
                "text": f"{score:.3f}" if score >= 0 else "failed",
                "behind": round(min(best - score, _FAR), 4),
            }
            for row, score in found.items()
        ]
    axis = alt.Axis(orient="top", labelAngle=0, labelLimit=104, domain=False, ticks=False)
    scenarios = [scenario.title for scenario in suite.scenarios]
    base = of(records, width=alt.Step(104), height=alt.Step(26)).encode(
        x=alt.X("scenario:N", sort=scenarios, title=None, axis=axis),
        y=named("method", [name(row) for row in rows]),
    )
    # Light enough for dark text on all of it.
    shades = alt.Scale(domain=[0, _FAR], range=["#56B4E9", "#ffffff"], interpolate="rgb")
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color("behind:Q", scale=shades, legend=None)
    )
    return spec(alt.layer(cells, base.mark_text(fontSize=12, color=INK).encode(text="text:N")))


def curves(suite: Suite, rows: Sequence[BenchRow], data: str, name: Name) -> Spec:
    """Accuracy over the share of the budget that is used, a panel per scenario."""
    points = [
        Point(name(row), (point + 1) / POINTS, accuracy, column=cell.scenario.title)
        for row in rows
        for cell in suite.cells
        if cell.data == data and cell.key in row.cells
        for point, accuracy in enumerate(row.cells[cell.key].curve)
        if accuracy is not None
    ]
    order = {scenario.title: place for place, scenario in enumerate(suite.scenarios)}
    colours = names.colours([row.entrant.method for row in rows])
    lines = [
        Line(name(row), colour, dashed=row.entrant.settings.get("batches") == "equal-time")
        for row, colour in zip(rows, colours, strict=True)
    ]
    x, y = Axis("Share of the budget", percent=True), Axis("Accuracy", domain=(0, 1))
    points.sort(key=lambda point: order[point.column])
    return figure(Lines(points, lines, x, y, height=170, wrap=3))
