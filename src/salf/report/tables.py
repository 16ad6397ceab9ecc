"""A table as plain data, and the ways to show it: terminal, HTML, Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

K = TypeVar("K")


class Bold(str):
    """The text of a cell that stands out."""


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first column says what a row is; the others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def rich(self, *, fold: bool = True) -> RenderableType:
        """The table for the terminal; cells are folded where it is too narrow."""
        table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for i, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*(Text(cell, "bold" * isinstance(cell, Bold)) for cell in row))
        if not fold:
            table.width = Console(width=10_000).measure(table).maximum
        # A title would be folded to the width of the table.
        return Group(Text(self.caption), table) if self.caption else table

    def html(self) -> str:
        """The table for a page."""
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        body = "".join(
            f"<tr>{''.join(map(_html_cell, range(len(row)), row))}</tr>" for row in self.rows
        )
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def markdown(self) -> str:
        """The table for a README."""
        lines = [self.caption, ""] if self.caption else []
        lines.append(_markdown_row(self.columns))
        lines.append(_markdown_row(["---", *("---:" for _ in self.columns[1:])]))
        lines += [
            _markdown_row([f"**{c}**" if isinstance(c, Bold) else c for c in row])
            for row in self.rows
        ]
        return "\n".join(lines) + "\n"


def bold(text: str, stands_out: bool) -> str:
    """The text of a cell, bold if it stands out."""
    return Bold(text) if stands_out else text


def best(values: Mapping[K, float | None], choose: Callable[..., Any] = max) -> set[K]:
    """Cells with the best of the values, if there are several to choose from."""
    top = choose((value for value in values.values() if value is not None), default=None)
    several = len(values) > 1 and top is not None
    return {key for key, value in values.items() if several and value == top}


def _html_cell(i: int, cell: str) -> str:
    text = f"<strong>{escape(cell)}</strong>" if isinstance(cell, Bold) else escape(cell)
    return f"<td>{text}</td>" if i else f'<th scope="row">{text}</th>'


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


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
