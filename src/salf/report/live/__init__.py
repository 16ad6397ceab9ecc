"""A live run as a page: what was measured (`run`), its charts, and the page itself."""

from salf.report.live.page import PAGE, page, write_live_page
from salf.report.live.run import LiveRun

__all__ = ["PAGE", "LiveRun", "page", "write_live_page"]
