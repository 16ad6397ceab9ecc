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
    """A Vega-Lite chart with a description (alternative text) and a caption."""

    spec: Mapping[str, Any]
    description: str
    caption: str = ""
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
Block = str | Table | Chart | Code | Statement


@dataclass(frozen=True)
class Section:
    """Blocks under a heading, in reading order. Consecutive tables stand side by side."""

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

    def markdown(self) -> str:
        """The page as Markdown, with pictures in the place of charts."""
        parts = [f"# {self.title}", *self.intro]
        for section in self.sections:
            parts.append(f"## {section.heading}")
            for kind, blocks in _runs(section.blocks):
                # Statements make one list.
                between = "\n" if kind == "Statement" else "\n\n"
                parts.append(between.join(_markdown(block) for block in blocks))
        return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def again(
    command: Sequence[str],
    config: str,
    *more: Block,
    about: str = "The config",
    heading: str = "Reproduce this page",
) -> Section:
    """The last section: the arguments of `salf` that make the page again, and the config."""
    how: Block = Code(join(["salf", *command])) if command else "Created in Python."
    return Section(heading, [how, *([Code(config, about)] if config else []), *more])


def made_with(packages: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence that names packages and their versions, if there are any."""
    found = [f"{name} {version}" for name, version in packages]
    return [f"Made with {names.listed(found)}."] if found else []


def _markdown(block: Block) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Table):
        return block.markdown()
    if isinstance(block, Statement):
        return f"- **{block.mark}**: {block.text}" + (f"  \n  {block.reason}" * bool(block.reason))
    if isinstance(block, Code):
        return "\n\n".join(filter(None, [block.summary, f"```\n{block.text.rstrip()}\n```"]))
    picture = f"![{block.description}]({block.picture})" if block.picture else block.description
    return "\n\n".join(filter(None, [picture, block.caption]))


def _runs(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Blocks with those of one kind that follow each other together, named by kind."""
    runs = groupby(blocks, lambda block: type(block).__name__)
    return [(kind, list(run)) for kind, run in runs]


def _javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed, as the content of a script element."""
    bundle: str = vl_convert.javascript_bundle()
    return bundle.replace("</script", r"<\/script")
