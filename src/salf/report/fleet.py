"""A preview of a fleet as a figure and a page: which users reach which layers, and when."""

from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Any

import numpy as np

from salf.common.files import write_whole
from salf.report import names
from salf.report.extra import check_extra, optional
from salf.report.page import Block, Chart, Code, Page, Section
from salf.report.style import INK, SOFT, Spec, legend, ordered, pictures, seconds_axis, shaded, spec
from salf.report.tables import Table
from salf.runs.config import Config
from salf.worlds.fleet.preview import DOWNLOAD, FINISH, LATE, UPLOAD, Preview

PICTURE, PAGE = "preview", "preview.html"
_WIDTH = 720
_MOST = 200  # users of the map: more cannot be told apart
_GREY, _PALE = "#c3c9cf", "#eceff1"


def write_preview(
    preview: Preview, config: Config, out: Path, command: Sequence[str]
) -> list[Path]:
    """Write the figure (PNG and SVG) and the page `preview.html` into `out`."""
    check_extra()
    picture = pictures(figure(preview))
    files = {
        **{out / f"{PICTURE}.{kind}": content for kind, content in picture.items()},
        out / PAGE: page(preview, config, command).html(),
    }
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def figure(preview: Preview) -> Spec:
    """All charts below each other, with a title."""
    alt = optional("altair")
    charts = [_deadlines(preview), _map(preview)]
    if preview.one_round:
        charts.append(_lanes(preview))
    title = alt.Title(
        f"Fleet {preview.fleet}: {preview.users} users",
        subtitle=_told(preview)[:1],
        anchor="start",
        offset=12,
    )
    return spec(alt.vconcat(*charts, title=title, spacing=24).resolve_scale(color="independent"))


def page(preview: Preview, config: Config, command: Sequence[str]) -> Page:
    """The preview as a page."""
    blocks: list[Block] = [
        Chart(
            spec(_deadlines(preview)),
            "The share of users that reach each layer, over the deadline.",
            "The share of users that have uploaded each layer by a deadline. The vertical line is "
            "this preview's deadline.",
        ),
        Table.of(
            ["Users that finish", "Deadline"],
            [[f"{part:.0%}", _by(preview, part)] for part in FINISH],
        ),
    ]
    sections = [
        Section("Reach by deadline", blocks),
        Section(
            "Which users reach which layers",
            [
                Chart(
                    spec(_map(preview)),
                    "The probability that each user reaches each layer, fastest user first.",
                    "The probability that a user reaches a layer by the deadline of "
                    f"{names.duration(preview.deadline)}; users from fastest to slowest.",
                ),
                Table.of(
                    [
                        "Layer",
                        "Users that reach it per round",
                        "p_l (probability that nobody does)",
                    ],
                    [
                        [label, f"{preview.asked * chance:.1f}", f"{nobody:.2g}"]
                        for label, chance, nobody in zip(
                            names.layers(preview.layers),
                            preview.reach.mean(axis=1).tolist(),
                            preview.unreached.tolist(),
                            strict=True,
                        )
                    ],
                ),
            ],
        ),
    ]
    if preview.one_round:
        sections.append(
            Section(
                "One round",
                [
                    Chart(
                        spec(_lanes(preview)),
                        "What users do in one round up to the deadline.",
                        "A user downloads the model, runs backpropagation from the last layer to "
                        "the first, and stops in time to upload what it has by the deadline. The "
                        "forward pass is part of the last layer's bar.",
                    )
                ],
            )
        )
    again: list[Block] = [
        Code(join(["salf", *command])),
        Code(config.to_toml(), "The config"),
    ]
    return Page(
        f"Fleet {preview.fleet}: {preview.users} users",
        _told(preview),
        [*sections, Section("Reproduce this page", again)],
    )


def _told(preview: Preview) -> list[str]:
    waits = names.duration(float(preview.waiting.mean()))
    if not np.isfinite(preview.waiting).all():
        waits = "forever, because some users never become available again"
    said = [
        f"A round that waits for all users takes {waits} on average. By a deadline of "
        f"{names.duration(preview.deadline)}, {preview.reach[0].mean():.0%} of the users finish "
        f"and {preview.depths[-1]:.0%} complete no layer.",
    ]
    if not preview.one_round:
        said.append(
            "Devices are not always available, so probabilities are averages over rounds that "
            "begin at different times."
        )
    return said


def _by(preview: Preview, part: float) -> str:
    seconds = preview.deadline_to_finish(part)
    if seconds is None:
        return f"more than {names.duration(float(preview.deadlines[-1]))}"
    return names.duration(seconds)


def _deadlines(preview: Preview) -> Any:
    """The reach of every layer over the deadline."""
    alt = optional("altair")
    labels = [f"layer {label}" for label in names.layers(preview.layers)]
    records = [
        {"deadline": round(float(seconds), 6), "layer": label, "reach": round(float(reach), 4)}
        for seconds, reaches in zip(
            [0.0, *preview.deadlines], [np.zeros(len(labels)), *preview.reach_at], strict=True
        )
        for label, reach in zip(labels, reaches, strict=True)
    ]
    last = float(preview.deadlines[-1])
    x = alt.X(
        "deadline:Q",
        title="Deadline",
        scale=alt.Scale(domain=[0, last], nice=False),
        axis=seconds_axis(last),
    )
    lines = (
        alt.Chart(alt.InlineData(records), width=_WIDTH, height=220)
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y(
                "reach:Q",
                title="Users that reach a layer",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            color=alt.Color(
                "layer:N",
                sort=labels,
                scale=alt.Scale(domain=labels, range=ordered(len(labels))),
                legend=legend(columns=8),
            ),
            tooltip=[
                alt.Tooltip("layer:N", title="Layer"),
                alt.Tooltip("deadline:Q", title="Deadline, s", format=".3~g"),
                alt.Tooltip("reach:Q", title="Reach", format=".0%"),
            ],
        )
    )
    return alt.layer(lines, *_rule(preview, "deadline"))


def _map(preview: Preview) -> Any:
    """The chance of each user, from the fastest, to reach each layer."""
    alt = optional("altair")
    labels = names.layers(preview.layers)
    order = np.argsort(preview.expected, kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, _MOST).astype(np.int64))]
    places = {int(user): place + 1 for place, user in enumerate(order)}
    records = [
        {
            "user": rank,
            "place": places[user],
            "layer": label,
            "reach": round(float(preview.reach[index, user]), 4),
        }
        for rank, user in enumerate(some.tolist(), 1)
        for index, label in enumerate(labels)
    ]
    return (
        alt.Chart(
            alt.InlineData(records),
            width=_WIDTH,
            height=alt.Step(22 if len(labels) <= 12 else 12),
        )
        .mark_rect(stroke="white", strokeWidth=1 if len(some) <= 60 else 0)
        .encode(
            x=alt.X(
                "user:O",
                title="User, fastest first",
                axis=alt.Axis(labels=False, ticks=False, domain=False),
            ),
            y=alt.Y("layer:N", sort=labels, title="Layer"),
            color=shaded("reach", "Probability of reaching a layer"),
            tooltip=[
                alt.Tooltip("place:Q", title="User, fastest first"),
                alt.Tooltip("layer:N", title="Layer"),
                alt.Tooltip("reach:Q", title="Chance", format=".0%"),
            ],
        )
    )


def _lanes(preview: Preview) -> Any:
    """What some users do in one round."""
    alt = optional("altair")
    labels = names.layers(preview.layers)
    colours = {
        DOWNLOAD: _GREY,
        **dict(
            zip(
                (f"layer {label}" for label in labels[::-1]),
                ordered(len(labels))[::-1],
                strict=True,
            )
        ),
        UPLOAD: SOFT,
        LATE: _PALE,
    }
    records = [
        {
            "user": span.user,
            "what": span.what if span.what in colours else f"layer {labels[int(span.what) - 1]}",
            "start": round(span.start, 6),
            "end": round(span.end, 6),
        }
        for span in preview.one_round
    ]
    shown = [what for what in colours if any(record["what"] == what for record in records)]
    last = max(preview.deadline, *(span.end for span in preview.one_round)) * 1.02
    scale = alt.Scale(domain=[0, last], nice=False)
    bars = (
        alt.Chart(alt.InlineData(records), width=_WIDTH, height=alt.Step(11))
        .mark_bar(height=9)
        .encode(
            x=alt.X("start:Q", title="Time in one round", scale=scale, axis=seconds_axis(last)),
            x2="end:Q",
            y=alt.Y(
                "user:O",
                title="User, fastest first",
                axis=alt.Axis(labels=False, ticks=False, domain=False),
            ),
            color=alt.Color(
                "what:N",
                sort=shown,
                scale=alt.Scale(domain=shown, range=[colours[what] for what in shown]),
                legend=alt.Legend(
                    title=None, orient="top", columns=8, symbolType="square", labelLimit=0
                ),
            ),
            tooltip=[
                alt.Tooltip("what:N", title="What"),
                alt.Tooltip("start:Q", title="From, s", format=".3~g"),
                alt.Tooltip("end:Q", title="To, s", format=".3~g"),
            ],
        )
    )
    return alt.layer(bars, *_rule(preview, "start"))


def _rule(preview: Preview, field: str) -> list[Any]:
    """The deadline as a line, with its name."""
    alt = optional("altair")
    at = alt.Chart(
        alt.InlineData([{field: preview.deadline, "label": names.duration(preview.deadline)}])
    ).encode(x=alt.X(f"{field}:Q"))
    rule = at.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.5)
    text = at.mark_text(align="left", dx=5, dy=8, y=0, fontSize=11, color=INK).encode(
        text="label:N"
    )
    return [rule, text]
