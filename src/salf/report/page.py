"""A page that is one file: text, tables and interactive charts, seen with no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from salf.report.extra import optional
from salf.report.tables import Table


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart, in words for those who cannot see it, and what to know when reading it."""

    spec: Mapping[str, Any]
    description: str
    caption: str = ""


@dataclass(frozen=True)
class Code:
    """Text to copy, as it is. With a summary, it is folded away behind it."""

    text: str
    summary: str = ""


# A paragraph is a string.
Block = str | Table | Chart | Code


@dataclass(frozen=True)
class Section:
    """Blocks under a heading, in the order they are read. Tables in a row stand side by side."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A title, paragraphs under it, and sections."""

    title: str
    intro: Sequence[str]
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as one self-contained file."""
        jinja2 = optional("jinja2")
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("salf.report", ""),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        charts = any(isinstance(block, Chart) for s in self.sections for block in s.blocks)
        page: str = environment.get_template("page.html").render(
            page=self,
            sections=[(s.heading, _runs(s.blocks)) for s in self.sections],
            # Once for all charts: it is the size of the page.
            javascript=_javascript() if charts else "",
        )
        return page


def _runs(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Blocks with those of one kind that follow each other together, named by kind."""
    runs = groupby(blocks, lambda block: type(block).__name__)
    return [(kind, list(run)) for kind, run in runs]


def _javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed, as the content of a script element."""
    bundle: str = optional("vl_convert").javascript_bundle()
    return bundle.replace("</script", r"<\/script")
