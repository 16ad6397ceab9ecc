"""A preview of a fleet as a figure and a page: which users reach which layers, and when."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from salf.core.arrivals import evenly
from salf.report import names, style
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point
from salf.report.lines import figure as figure_of
from salf.report.page import Chart, Page, Section, again
from salf.runs.config import Config
from salf.worlds.fleet.preview import Preview

PICTURE, PAGE = "preview", "preview.html"
_WIDTH = 720
_MOST = 200  # users of the map: more cannot be told apart
_UNNAMED = {"labels": False, "ticks": False, "domain": False}


def write_preview(
    preview: Preview, config: Config, out: Path, command: Sequence[str]
) -> list[Path]:
    """Write the figure (PNG and SVG) and the page `preview.html` into `out`."""
    pictured = style.pictures(figure(preview), out / PICTURE)
    return style.write({**pictured, out / PAGE: page(preview, config, command).html()})


def figure(preview: Preview) -> style.Spec:
    """Both charts below each other, with a title."""
    told = str(preview).splitlines()[1:3]
    return figure_of(_deadlines(preview), _map(preview), title=_title(preview), subtitle=told)


def page(preview: Preview, config: Config, command: Sequence[str]) -> Page:
    """The preview as a page."""
    by_deadline = Chart(
        figure_of(_deadlines(preview)),
        "The part of the users that have uploaded each layer by a deadline. The vertical line is "
        "this preview's deadline.",
    )
    by_user = Chart(
        style.spec(_map(preview)),
        "The probability that a user reaches a layer by the deadline of "
        f"{names.duration(preview.deadline)}; users from fastest to slowest.",
    )
    sections = [
        Section("Reach by deadline", [by_deadline]),
        Section("Which users reach which layers", [by_user]),
        again(command, config.to_toml()),
    ]
    return Page(_title(preview), str(preview).splitlines(), sections)


def _title(preview: Preview) -> str:
    return f"Fleet {preview.fleet}: {preview.users} users"


def _deadlines(preview: Preview) -> Lines:
    """The reach of every layer over the deadline."""
    labels = [f"layer {label}" for label in names.layers(preview.layers)]
    deadlines = np.concatenate([[0.0], preview.deadlines]).tolist()
    reach = np.vstack([np.zeros(len(labels)), preview.reach_at]).round(4).tolist()
    return Lines(
        [
            Point(label, round(seconds, 6), part)
            for seconds, reached in zip(deadlines, reach, strict=True)
            for label, part in zip(labels, reached, strict=True)
        ],
        [Line(*each) for each in zip(labels, style.ordered(len(labels)), strict=True)],
        x=style.Axis("Deadline", seconds=True, domain=(0, deadlines[-1])),
        y=style.Axis("Users that reach a layer", percent=True, domain=(0, 1)),
        marks=[(preview.deadline, names.duration(preview.deadline))],
        widest=_WIDTH,
    )


def _map(preview: Preview) -> Any:
    """The chance of each user, from the fastest, to reach each layer."""
    labels = names.layers(preview.layers)
    order = np.argsort(preview.expected, kind="stable")
    shown = evenly(np.arange(len(order)), _MOST).tolist()
    records = [
        {
            "user": rank,
            "place": place + 1,
            "layer": label,
            "reach": round(float(preview.reach[index, order[place]]), 4),
        }
        for rank, place in enumerate(shown, 1)
        for index, label in enumerate(labels)
    ]
    height = alt.Step(22 if len(labels) <= 12 else 12)
    cells = style.of(records, width=_WIDTH, height=height).mark_rect(
        stroke="white", strokeWidth=1 if len(shown) <= 60 else 0
    )
    return cells.encode(
        x=alt.X("user:O", title="User, fastest first", axis=alt.Axis(**_UNNAMED)),
        y=style.named("layer", labels, "Layer"),
        color=style.shaded("reach", "Probability of reaching a layer"),
        tooltip=style.tips(
            place="User, fastest first", layer="Layer", reach=("Probability", ".0%")
        ),
    )
