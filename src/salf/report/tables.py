"""A table as plain data, and the ways to show it: terminal, HTML, Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is bold."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first column says what a row is; the others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @classmethod
    def of(
        cls, columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str = ""
    ) -> "Table":
        """A table of texts; only bold ones need to be given as cells."""
        cells = [[Cell(c) if isinstance(c, str) else c for c in row] for row in rows]
        return cls(columns, cells, caption)

    def rich(self, *, fold: bool = True) -> RenderableType:
        """For the terminal, folding cells where it is too narrow."""
        table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for i, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
        if not fold:
            table.width = Console(width=10_000).measure(table).maximum
        # A title would be folded to the width of the table.
        return Group(Text(self.caption), table) if self.caption else table

    def html(self) -> str:
        """For a page."""
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        body = "".join(
            f"<tr>{''.join(map(_html_cell, range(len(row)), row))}</tr>" for row in self.rows
        )
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def markdown(self) -> str:
        """For a README."""
        lines = [self.caption, ""] if self.caption else []
        lines.append(_markdown_row(self.columns))
        lines.append(_markdown_row(["---", *("---:" for _ in self.columns[1:])]))
        lines += [_markdown_row([_markdown_cell(cell) for cell in row]) for row in self.rows]
        return "\n".join(lines) + "\n"


def _html_cell(i: int, cell: Cell) -> str:
    text = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f"<td>{text}</td>" if i else f'<th scope="row">{text}</th>'


def _markdown_cell(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.bold else cell.text


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def printed(show: Callable[[Console], None]) -> str:
    """What is shown on a console, as plain text."""
    console = Console(width=10_000, color_system=None)
    with console.capture() as text:
        show(console)
    return text.get()
