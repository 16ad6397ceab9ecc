"""A picture of a fleet: the part of the users that reach each layer, by deadline."""

from pathlib import Path

import numpy as np

from salf.common.figures import Axis, Figure, Line, Lines, Point, ordered
from salf.common.files import write_all
from salf.common.pictures import pictures
from salf.report import names
from salf.worlds.fleet.preview import Preview


def write_preview(preview: Preview, out: Path) -> list[Path]:
    """Write the picture `preview` into `out`."""
    return write_all(pictures(figure(preview), out / "preview"))


def figure(preview: Preview) -> Figure:
    """The reach of each layer over the deadline; a line marks the deadline of the preview."""
    labels = [f"layer {label}" for label in names.layers(preview.layers)]
    deadlines = np.concatenate([[0.0], preview.deadlines]).round(6).tolist()
    reach = np.vstack([np.zeros(len(labels)), preview.reach_at]).round(4).tolist()
    points = [
        Point(label, seconds, part)
        for seconds, reached in zip(deadlines, reach, strict=True)
        for label, part in zip(labels, reached, strict=True)
    ]
    chart = Lines(
        points,
        [*map(Line, labels, ordered(len(labels)))],
        x=Axis("Deadline", seconds=True, domain=(0, deadlines[-1])),
        y=Axis("Users that reach a layer", percent=True, domain=(0, 1)),
        marks=[(preview.deadline, names.duration(preview.deadline))],
    )
    title = f"Fleet {preview.fleet}: {preview.users} users"
    return Figure([chart], title, str(preview).splitlines()[1:3])
