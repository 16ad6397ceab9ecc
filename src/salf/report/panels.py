"""A chart of a comparison in panels, by split, average, other settings and stragglers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from salf.report import names
from salf.report.style import faceted
from salf.runs.compare import Case, Comparison
from salf.runs.config import Config

By = Literal["split", "average", "more", "stragglers"]

_MAX_COLUMNS = 4


@dataclass(frozen=True)
class Panels:
    """Which panel a case is in. A heading says only what differs between panels."""

    columns: Sequence[By]
    rows: Sequence[By]
    cases: Sequence[Case]
    base: Config

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        cases: Iterable[Case] | None = None,
        by: Sequence[By] = ("split", "average", "more", "stragglers"),
    ) -> "Panels":
        """Ratios of stragglers are rows, all else is columns, to be seen next to each other."""
        cases = list(comparison.results if cases is None else cases)
        several = [part for part in by if len({getattr(case, part) for case in cases}) > 1]
        columns: list[By] = [part for part in several if part != "stragglers"]
        rows: list[By] = [part for part in several if part == "stragglers"]
        wide = len({tuple(getattr(case, part) for part in columns) for case in cases})
        if wide > _MAX_COLUMNS and len(columns) > 1:
            rows.append(columns.pop())
        if not columns:
            columns, rows = rows, columns
        return cls(columns, rows, cases, comparison.base)

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

    def faceted(self, chart: Any) -> Any:
        """The chart once per panel."""
        places = [self.place(case) for case in self.cases]
        columns, rows = ([place[side] for place in places] for side in ("column", "row"))
        return faceted(chart, columns, rows)

    def _heading(self, case: Case, part: By) -> str:
        if part == "split":
            return names.split(case.split)
        if part == "average":
            return names.AVERAGES_SHORT.get(case.average, case.average)
        if part == "more":
            return names.values(case.more)
        if self.base.fleet:
            return names.fleet(self.base)
        return names.condition(self.base.depth, case.stragglers)
