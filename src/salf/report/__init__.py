"""Results for people: tables in the terminal, pictures, and pages that need no network.

Tables need no extra packages. Pictures and pages need `pip install 'salf[report]'`, which is
imported when the first one is made.
"""

from salf.report.comparison import print_tables, write_report
from salf.report.extra import check_extra
from salf.report.live import write_live_page
from salf.report.page import Chart, Code, Page, Section, Statement
from salf.report.tables import Cell, Table

__all__ = [
    "Cell",
    "Chart",
    "Code",
    "Page",
    "Section",
    "Statement",
    "Table",
    "check_extra",
    "print_tables",
    "write_live_page",
    "write_report",
]
