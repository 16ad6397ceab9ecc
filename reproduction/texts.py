"""The words of the page, from texts.toml: what the paper claims, and what is said about it."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypedDict

from reproduction.comparisons import CONVENTIONS, TIE
from reproduction.verdicts import Check, Finding, judge

TEXTS = tomllib.loads((files("reproduction") / "texts.toml").read_text(encoding="utf-8"))


class About(TypedDict):
    """The words around an item's figure."""

    intro: str
    description: str
    caption: str


class Heading(TypedDict):
    """The words on a figure."""

    title: str
    subtitle: Sequence[str]


def text(item: str, key: str, **values: Any) -> str:
    """One text, filled in."""
    found: str = TEXTS[item][key]
    return found.format(**values)


def about(item: str, **values: Any) -> About:
    """Words on what was run for an item, and on its figure."""
    intro, description, caption = (text(item, key, **values) for key in About.__annotations__)
    return {"intro": intro, "description": description, "caption": caption}


def heading(item: str, **values: Any) -> Heading:
    """The heading of an item's figure."""
    figure, subtitle = (text(item, key, **values) for key in ("figure", "subtitle"))
    return {"title": figure, "subtitle": [subtitle]}


def finding(
    item: str, claim: str, checks: Iterable[Check], average: str = "", **values: Any
) -> Finding:
    """The verdict on a claim; `average` is the way of averaging it is judged for, if any."""
    told = TEXTS[item][claim]
    values |= {"tie": TIE, "why": TEXTS["why"].get(average)}
    texts = ("claim", "note", "why_not", "untested")
    filled = {key: told[key].format(**values) for key in texts if key in told}
    filled["claim"] = (f"{CONVENTIONS[average]}: " if average else "") + filled["claim"]
    found = judge(checks=checks, ours=told.get("ours", False), **filled)
    return replace(found, about=f"{item}.{claim}", average=average)
