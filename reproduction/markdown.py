"""A page as Markdown, with pictures in the place of charts."""

from dataclasses import dataclass
from typing import Literal

from salf.report.page import Chart, Code, OtherBlock, Page, PageBlock, runs
from salf.report.tables import Table

Mood = Literal["good", "mixed", "bad", "none"]


@dataclass(frozen=True)
class Statement(OtherBlock):
    """A sentence, a verdict on it (`mark`) and the reason. The mood sets its colour."""

    mark: str
    mood: Mood
    text: str
    reason: str = ""


def markdown(page: Page) -> str:
    """The page."""
    parts = [f"# {page.title}", *page.intro]
    for section in page.sections:
        parts.append(f"## {section.heading}")
        for kind, blocks in runs(section.blocks):
            # Statements make one list.
            between = "\n" if kind == "Statement" else "\n\n"
            parts.append(between.join(_block(block) for block in blocks))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _block(block: PageBlock) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Table):
        return block.markdown()
    if isinstance(block, Statement):
        return f"- **{block.mark}**: {block.text}" + (f"  \n  {block.reason}" * bool(block.reason))
    if isinstance(block, Code):
        return "\n\n".join(filter(None, [block.summary, f"```\n{block.text.rstrip()}\n```"]))
    assert isinstance(block, Chart)
    picture = f"![{block.description}]({block.picture})" if block.picture else block.description
    return "\n\n".join(filter(None, [picture, block.caption]))
