"""A page in one file: text, tables and interactive charts that need no network."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import join
from typing import Any, Literal

from salf.report import names
from salf.report.extra import jinja2, vl_convert
from salf.report.tables import Table


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart with a caption, and a description for those who cannot see it."""

    spec: Mapping[str, Any]
    caption: str
    description: str = ""  # by default, the caption
    picture: str = ""  # the file with the same chart, which Markdown shows in its place


@dataclass(frozen=True)
class Code:
    """Verbatim text to copy. With a summary, it is collapsed."""

    text: str
    summary: str = ""


Mood = Literal["good", "mixed", "bad", "none"]


@dataclass(frozen=True)
class Statement:
    """A sentence, a verdict on it (`mark`) and the reason. The mood sets its colour."""

    mark: str
    mood: Mood
    text: str
    reason: str = ""


# A paragraph is a string.
PageBlock = str | Table | Chart | Code | Statement


@dataclass(frozen=True)
class Section:
    """Blocks under a heading, in reading order. Consecutive tables stand side by side."""

    heading: str
    blocks: Sequence[PageBlock]


@dataclass(frozen=True)
class Page:
    """A title, paragraphs under it, and sections."""

    title: str
    intro: Sequence[str]
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as one self-contained file."""
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
            sections=[(s.heading, runs(s.blocks)) for s in self.sections],
            # Once for all charts: it is the size of the page.
            javascript=_javascript() if charts else "",
        )
        return page


def again(
    command: Sequence[str],
    config: str,
    *more: PageBlock,
    about: str = "The config",
    heading: str = "Reproduce this page",
) -> Section:
    """The last section: the arguments of `salf` that make the page again, and the config."""
    how: PageBlock = Code(join(["salf", *command])) if command else "Created in Python."
    return Section(heading, [how, *([Code(config, about)] if config else []), *more])


def made_with(packages: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence that names packages and their versions, if there are any."""
    found = [f"{name} {version}" for name, version in packages]
    return [f"Made with {names.listed(found)}."] if found else []


def runs(blocks: Sequence[PageBlock]) -> list[tuple[str, list[PageBlock]]]:
    """Blocks with those of one kind that follow each other together, named by kind."""
    runs = groupby(blocks, lambda block: type(block).__name__)
    return [(kind, list(run)) for kind, run in runs]


def _javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed, as the content of a script element."""
    bundle: str = vl_convert.javascript_bundle()
    return bundle.replace("</script", r"<\/script")
