"""A page in one file: text, tables and charts that need no network."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from shlex import join

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from salf.common.figures import Figure
from salf.report import names
from salf.report.tables import Table


@dataclass(frozen=True)
class Chart:
    """A figure with a caption, and a description for those who cannot see it."""

    figure: Figure
    caption: str
    description: str = ""  # by default, the caption
    picture: str = ""  # the file with the same chart, which Markdown shows in its place


@dataclass(frozen=True)
class Code:
    """Verbatim text to copy. With a summary, it is collapsed."""

    text: str
    summary: str = ""


class OtherBlock:
    """Anything else that main.html shows, by the name of its class."""


class Note(str):
    """A paragraph in small print: what was measured, what columns mean."""


# A paragraph is a string.
PageBlock = str | Table | Chart | Code | OtherBlock


@dataclass(frozen=True)
class Section:
    """Blocks under a heading, in reading order. Consecutive tables stand side by side."""

    heading: str
    blocks: Sequence[PageBlock]


@dataclass(frozen=True)
class Page:
    """A title, paragraphs under it, of which the first is the verdict, and sections."""

    title: str
    intro: Sequence[str]
    sections: Sequence[Section]

    def html(self, version: str = "") -> str:
        """The page as one file. With the `version` of its content it asks its server for new ones.

        `salf watch` is such a server.
        """
        return _template("page").render(page=self, runs=runs, version=version)

    def main(self) -> str:
        """What changes of a page that follows a folder."""
        return _template("main").render(page=self, runs=runs)


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("salf.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    # Panels stay in their order; a page holds thousands of points.
    kept = {"sort_keys": False, "separators": (",", ":")}
    environment.policies["json.dumps_kwargs"] = kept
    return environment.get_template(f"{name}.html")


def again(
    command: Sequence[str],
    config: str,
    *more: PageBlock,
    about: str = "",
    heading: str = "Reproduce this page",
) -> list[Section]:
    """The last sections: settings, and the arguments of `salf` that make the page again."""
    how: PageBlock = Code(join(["salf", *command])) if command else "Created in Python."
    settings = [Section("Settings", [*filter(None, [about]), Code(config)])] if config else []
    return [*settings, Section(heading, [how, *more])]


def made_with(packages: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence that names packages and their versions, if there are any."""
    found = [f"{name} {version}" for name, version in packages]
    return [f"Made with {names.listed(found)}."] if found else []


def runs(blocks: Sequence[PageBlock]) -> list[tuple[str, list[PageBlock]]]:
    """Blocks with those of one kind that follow each other together, named by kind."""
    runs = groupby(blocks, lambda block: type(block).__name__)
    return [(kind, list(run)) for kind, run in runs]
