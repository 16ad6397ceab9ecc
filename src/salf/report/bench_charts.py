"""Charts of the benchmark: accuracies as a heat map, and over the budget."""

from collections.abc import Callable, Sequence
from typing import Any

from salf.bench import ranking
from salf.bench.results import BenchRow
from salf.bench.suite import POINTS, Suite
from salf.report import names
from salf.report.extra import optional
from salf.report.style import INK, Spec, legend, spec

Name = Callable[[BenchRow], str]
_FAR = 0.2  # below the best of a scenario: as light as it gets
_COLUMNS = 3


def accuracy_map(suite: Suite, rows: Sequence[BenchRow], data: str, name: Name) -> Spec:
    """The accuracy of every method in every scenario, shaded by its distance to the best."""
    alt = optional("altair")
    records: list[dict[str, Any]] = []
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
    scenarios = [scenario.title for scenario in suite.scenarios]
    base = alt.Chart(alt.InlineData(records), width=alt.Step(104), height=alt.Step(26)).encode(
        x=alt.X(
            "scenario:N",
            sort=scenarios,
            title=None,
            axis=alt.Axis(orient="top", labelAngle=0, labelLimit=104, domain=False, ticks=False),
        ),
        y=alt.Y("method:N", sort=[name(row) for row in rows], title=None),
    )
    # Light enough for dark text on all of it.
    shades = alt.Scale(domain=[0, _FAR], range=["#56B4E9", "#ffffff"], interpolate="rgb")
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color("behind:Q", scale=shades, legend=None)
    )
    return spec(alt.layer(cells, base.mark_text(fontSize=12, color=INK).encode(text="text:N")))


def curves(suite: Suite, rows: Sequence[BenchRow], data: str, name: Name) -> Spec:
    """Accuracy over the share of the budget that is used, a panel per scenario."""
    alt = optional("altair")
    records = [
        {
            "method": name(row),
            "scenario": cell.scenario.title,
            "budget": (point + 1) / POINTS,
            "accuracy": accuracy,
        }
        for row in rows
        for cell in suite.cells
        if cell.data == data and cell.key in row.cells
        for point, accuracy in enumerate(row.cells[cell.key].curve)
        if accuracy is not None
    ]
    shown = [name(row) for row in rows]
    dashes = [
        [5, 3] if row.entrant.settings.get("batches") == "equal-time" else [1, 0] for row in rows
    ]
    look = legend(columns=4)
    chosen = alt.selection_point(fields=["method"], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.1))
    colours = names.colours([row.entrant.method for row in rows])
    chart = (
        alt.Chart(alt.NamedData("curves"), width=255, height=170)
        .mark_line(strokeJoin="round", strokeWidth=1.8)
        .encode(
            x=alt.X(
                "budget:Q", title="Share of the budget", axis=alt.Axis(format=".0%", tickCount=5)
            ),
            y=alt.Y("accuracy:Q", title="Accuracy", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("method:N", scale=alt.Scale(domain=shown, range=colours), legend=look),
            strokeDash=alt.StrokeDash(
                "method:N", scale=alt.Scale(domain=shown, range=dashes), legend=look
            ),
            opacity=opacity,
            tooltip=["method:N", alt.Tooltip("accuracy:Q", format=".3f")],
        )
        .add_params(chosen)
    )
    panels = alt.Facet(
        "scenario:N", sort=[scenario.title for scenario in suite.scenarios], title=None
    )
    return spec(chart.facet(panels, columns=_COLUMNS, spacing=32), {"curves": records})
