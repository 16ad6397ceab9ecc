"""A table as plain data, and the ways to show it: terminal, HTML, Markdown."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

K = TypeVar("K")
NONE = "–"


class Bold(str):
    """The text of a cell that stands out."""

    bold = True  # for the template


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first column says what a row is; the others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    own: Collection[str] = ()  # what the first column says in rows that are the reader's

    @classmethod
    def of(
        cls, rows: Iterable[Mapping[str, str]], caption: str = "", own: Collection[str] = ()
    ) -> "Table":
        """From rows with their cells by column; those that a row lacks are dashes."""
        rows = list(rows)
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [[row.get(column, NONE) for column in columns] for row in rows]
        return cls(columns, cells, caption, own)

    def rich(self, *, fold: bool = True) -> RenderableType:
        """The table for the terminal; cells are folded where it is too narrow."""
        table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for i, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if i else "left")
        for row in self.rows:
            cells = (Text(cell, "bold" * isinstance(cell, Bold)) for cell in row)
            table.add_row(*cells, style="cyan" if row[0] in self.own else None)
        if not fold:
            table.width = Console(width=10_000).measure(table).maximum
        # A title would be folded to the width of the table.
        return Group(Text(self.caption), table) if self.caption else table

    def markdown(self) -> str:
        """The table for a README."""
        bolded = [[f"**{c}**" if isinstance(c, Bold) else c for c in row] for row in self.rows]
        lines = [self.columns, ["---", *("---:" for _ in self.columns[1:])], *bolded]
        escaped = [" | ".join(cell.replace("|", r"\|") for cell in line) for line in lines]
        caption = f"{self.caption}\n\n" if self.caption else ""
        return caption + "".join(f"| {line} |\n" for line in escaped)


def bold(text: str, stands_out: bool) -> str:
    """The text of a cell, bold if it stands out."""
    return Bold(text) if stands_out else text


def best(values: Mapping[K, float | None], choose: Callable[..., Any] = max) -> set[K]:
    """Cells with the best of the values, if there are several to choose from."""
    top = choose((value for value in values.values() if value is not None), default=None)
    several = len(values) > 1 and top is not None
    return {key for key, value in values.items() if several and value == top}


def not_reached(times: Sequence[float | None]) -> str:
    """How many of some runs reached a target, unless all did."""
    known = sum(time is not None for time in times)
    if known == len(times):
        return ""
    return f"{known} of {len(times)} reached" if known else "not reached"


def tell(console: Console, *shown: str | Table) -> None:
    """Print sentences and tables as they are: brackets are no markup, nothing is broken up."""
    for each in shown:
        if isinstance(each, str):
            console.print(each, markup=False, highlight=False, soft_wrap=True)
        else:
            # A file has no width: nothing is folded to the 80 columns rich assumes there.
            console.print(each.rich(fold=console.is_terminal), crop=False)


def printed(show: Callable[[Console], None]) -> str:
    """The plain text of what `show` prints on a console."""
    console = Console(width=10_000, color_system=None)
    with console.capture() as text:
        show(console)
    return text.get()
