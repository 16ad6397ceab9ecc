"""A preview of a fleet as a figure and a page: which users reach which layers, and when."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from salf.common.figures import Axis, Cells, Figure, Line, Lines, Point, ordered
from salf.common.files import write_all
from salf.common.pictures import pictures
from salf.core.arrivals import evenly
from salf.report import names
from salf.report.page import Chart, Page, Section, again
from salf.runs.config import Config
from salf.worlds.fleet.preview import Preview

PICTURE, PAGE = "preview", "preview.html"
_MOST = 200  # users of the map: more cannot be told apart


def write_preview(
    preview: Preview, config: Config, out: Path, command: Sequence[str]
) -> list[Path]:
    """Write the figure (PNG and SVG) and the page `preview.html` into `out`."""
    pictured = pictures(figure(preview), out / PICTURE)
    return write_all({**pictured, out / PAGE: page(preview, config, command).html()})


def figure(preview: Preview) -> Figure:
    """The reach of each layer over the deadline, with a title."""
    told = str(preview).splitlines()[1:3]
    return Figure([_deadlines(preview)], _title(preview), told)


def page(preview: Preview, config: Config, command: Sequence[str]) -> Page:
    """The preview as a page."""
    by_deadline = Chart(
        Figure([_deadlines(preview)]),
        "The part of the users that have uploaded each layer by a deadline. The vertical line is "
        "this preview's deadline.",
    )
    by_user = Chart(
        Figure([_map(preview)]),
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
        [Line(*each) for each in zip(labels, ordered(len(labels)), strict=True)],
        x=Axis("Deadline", seconds=True, domain=(0, deadlines[-1])),
        y=Axis("Users that reach a layer", percent=True, domain=(0, 1)),
        marks=[(preview.deadline, names.duration(preview.deadline))],
    )


def _map(preview: Preview) -> Cells:
    """The chance of each user, from the fastest, to reach each layer."""
    order = np.argsort(preview.expected, kind="stable")
    places = evenly(np.arange(len(order)), _MOST)
    reach = preview.reach[:, order[places]].round(4).tolist()
    columns = [f"{place + 1}" for place in places.tolist()]
    value = "Probability of reaching a layer"
    return Cells(
        names.layers(preview.layers), columns, reach, value, "user, fastest first", "layer"
    )
