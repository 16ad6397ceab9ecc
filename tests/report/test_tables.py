from io import StringIO

import pytest
from rich.console import Console

from salf.report import tables
from salf.report.tables import Bold, Table

TABLE = Table(
    ["Method", "30 %"],
    [["Drop", "0.7"], ["SALF", Bold("0.9")]],
    "A caption that is longer than the table",
)


def printed(table: Table, *, width: int = 80, terminal: bool = False, fold: bool = True) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system="standard")
    console.print(table.rich(fold=fold), crop=False)
    return stream.getvalue()


def test_in_the_terminal_numbers_are_on_the_right_and_the_best_is_bold():
    lines = printed(TABLE, terminal=True).splitlines()
    assert lines[0] == "A caption that is longer than the table"
    assert lines[3:] == ["Drop     0.7", "SALF    \x1b[1m 0.9\x1b[0m"]


def test_a_wide_table_is_folded_only_if_told_to():
    wide = Table(["Method", *"abc"], [["SALF", *["0.8964 ±0.0021"] * 3]])
    assert "0.8964 ±0.0021  0.8964 ±0.0021  0.8964 ±0.0021" in printed(wide, width=30, fold=False)
    assert "0.8964 ±0.0021" not in printed(wide, width=30)


def test_what_looks_like_markup_is_printed_as_it_is():
    assert "[red]" in printed(Table(["[bold]"], [["[red]"]], "[blue]"))


def test_markdown():
    assert TABLE.markdown() == (
        "A caption that is longer than the table\n\n"
        "| Method | 30 % |\n| --- | ---: |\n| Drop | 0.7 |\n| SALF | **0.9** |\n"
    )


@pytest.mark.parametrize("bold", [True, False])
def test_markdown_escapes_what_would_end_a_cell(bold):
    assert r"a\|b" in Table(["x"], [[tables.bold("a|b", bold)]]).markdown()
