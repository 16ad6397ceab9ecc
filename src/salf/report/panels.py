"""A chart of a comparison in panels, by split, average and ratio of stragglers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from salf.experiments.compare import Case, Comparison
from salf.report import names
from salf.report.extra import optional

By = Literal["split", "average", "stragglers"]

_WIDTH = 880  # of all columns together
_WIDEST = 560  # of one
_GAP = 30
_MAX_COLUMNS = 4


@dataclass(frozen=True)
class Panels:
    """Which panel a case is in. A heading says only what differs between panels."""

    columns: Sequence[By]
    rows: Sequence[By]
    cases: Sequence[Case]
    depth: str

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        cases: Iterable[Case] | None = None,
        by: Sequence[By] = ("split", "average", "stragglers"),
    ) -> "Panels":
        """Splits and averages are columns, to be seen next to each other; ratios are rows."""
        cases = list(comparison.results if cases is None else cases)
        several = [part for part in by if len({getattr(case, part) for case in cases}) > 1]
        columns: list[By] = [part for part in several if part != "stragglers"]
        rows: list[By] = [part for part in several if part == "stragglers"]
        wide = len({tuple(getattr(case, part) for part in columns) for case in cases})
        if wide > _MAX_COLUMNS and len(columns) > 1:
            rows.append(columns.pop())
        if not columns:
            columns, rows = rows, columns
        return cls(columns, rows, cases, comparison.base.depth)

    def place(self, case: Case) -> dict[str, str]:
        """The fields of a record of this case that say in which panel it is."""
        return {
            "column": "\n".join(self._heading(case, part) for part in self.columns),
            "row": "\n".join(self._heading(case, part) for part in self.rows),
        }

    def shared(self) -> list[str]:
        """What no heading says, because all panels have it in common."""
        parts: tuple[By, ...] = ("split", "average", "stragglers")
        common = [part for part in parts if part not in (*self.columns, *self.rows)]
        return [self._heading(self.cases[0], part).replace("\n", " ") for part in common]

    def faceted(self, chart: Any, height: int | None = None) -> Any:
        """The chart once per panel. Without a height, each row of it takes what it needs."""
        alt = optional("altair")
        columns, rows = self._all("column"), self._all("row")
        width = min(_WIDEST, _WIDTH // len(columns) - _GAP)
        chart = chart.properties(width=width, **({"height": height} if height else {}))
        header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
        facets = {}
        if self.columns:
            facets["column"] = alt.Column("column:N", sort=columns, header=header)
        if self.rows:
            facets["row"] = alt.Row("row:N", sort=rows, header=header)
        return chart.facet(**facets) if facets else chart

    def _heading(self, case: Case, part: By) -> str:
        if part == "split":
            return names.split(case.split)
        if part == "average":
            return names.AVERAGES_SHORT.get(case.average, case.average)
        return names.condition(self.depth, case.stragglers)

    def _all(self, side: str) -> list[str]:
        return list(dict.fromkeys(self.place(case)[side] for case in self.cases))
