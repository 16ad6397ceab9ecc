"""Charts of a live run, as Vega-Lite: accuracy, how far users got, layers, durations."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

from salf.core.rows import Row
from salf.report import names
from salf.report.charts import MEASURES, Measure
from salf.report.extra import optional
from salf.report.live.run import LiveRun
from salf.report.style import INK, Spec, legend, shaded, spec, thinned

_WIDTH = 740
_FEW = 40  # points of a curve that are drawn, and not only there to be hovered over
_COLUMNS = 120  # of the users' rounds
MOST_USERS = 100  # that have a row; so a page stays one that a browser opens at once
MOST_ROUNDS = 400
_TICKS = 12
_SHORTEST = 1e-5  # seconds: an axis of magnitudes has no zero
TOOK, LIMIT, OVER = "a round", "limit, T_max + grace", "round over its limit"


def curve(run: LiveRun, measure: Measure) -> Spec | None:
    """A measure over the seconds that rounds took; None if it was never measured."""
    alt = optional("altair")
    records, seconds = [], 0.0
    for done in run.records:
        seconds += done.seconds
        value = done.accuracy if measure == "accuracy" else done.train_loss
        if value is not None and isfinite(value):
            at = {"seconds": round(seconds, 4), "round": done.round}
            records.append({**at, "value": round(value, 6)})
    if not records:
        return None
    records = thinned(records)
    (colour,) = names.colours([run.config.method])
    end = round(seconds, 4) or 1.0
    base = alt.Chart(alt.InlineData(records), width=_WIDTH, height=240).encode(
        x=alt.X(
            "seconds:Q",
            title="Seconds of training",
            scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(tickCount=10),
        ),
        y=alt.Y("value:Q", title=MEASURES[measure], scale=alt.Scale(domain=_around(records))),
    )
    line = base.mark_line(strokeJoin="round", strokeWidth=2.4, color=colour)
    shown = 1 if len(records) <= _FEW else 0
    points = base.mark_point(size=45, filled=True, opacity=shown, color=colour).encode(
        tooltip=[
            alt.Tooltip("round:Q", title="Round"),
            alt.Tooltip("seconds:Q", title="Seconds", format=".2f"),
            alt.Tooltip("value:Q", title=MEASURES[measure], format=".4f"),
        ]
    )
    return spec(alt.layer(line, points))


def _around(records: Sequence[Mapping[str, float]]) -> list[float]:
    """What an axis shows: all values, with some room. Of one alone, Vega would show from 0 on."""
    values = [record["value"] for record in records]
    room = 0.05 * (max(values) - min(values)) or 0.05
    return [min(values) - room, max(values) + room]


def shown_users(run: LiveRun) -> dict[str, str]:
    """All users; or every n-th, which leaves the slow and the fast ones their shares."""
    users = list(run.users.items())
    return dict(users[:: -(-len(users) // MOST_USERS)])


def progress(run: LiveRun) -> Spec:
    """How far each user got over the rounds. Where it was not asked, there is nothing."""
    alt = optional("altair")
    users, total = shown_users(run), run.depth
    records = []
    for some in _in_bins(run.records, _COLUMNS):
        for user, label in users.items():
            depths = [done.depths[user] for done in some if user in done.depths]
            if depths:
                share = fmean((total + 1 - depth) / total for depth in depths)
                records.append(
                    {"user": label, **_span(some), "asked": len(depths), "share": round(share, 4)}
                )
    order = list(users.values())
    chart = (
        alt.Chart(
            alt.InlineData(records),
            width=_whole_columns(len(run.records)),
            height=alt.Step(_row_height(len(users))),
        )
        .mark_rect()
        .encode(
            x=alt.X("from:Q", **_rounds(run, grid=False)),
            x2="to:Q",
            y=alt.Y(
                "user:N",
                title=None,
                sort=order,
                scale=alt.Scale(domain=order, paddingInner=0.12),
                axis=alt.Axis(labelLimit=220, labelFontSize=11 if len(users) <= 24 else 10),
            ),
            color=shaded("share", "Layers reached"),
            tooltip=[
                alt.Tooltip("user:N", title="User"),
                alt.Tooltip("rounds:N", title="Rounds"),
                alt.Tooltip("asked:Q", title="Asked in"),
                alt.Tooltip("share:Q", title="Layers reached", format=".0%"),
            ],
        )
    )
    return spec(chart)


def layers(run: LiveRun) -> Spec:
    """How many users' updates each layer got, on average, and the last p_l if there is one."""
    alt = optional("altair")
    labels, chances = run.layers, run.records[-1].unreached or [None] * run.depth
    records = []
    for i, (label, chance) in enumerate(zip(labels, chances, strict=True)):
        users = fmean(done.reached[i] for done in run.records)
        text = f"{users:.1f}" + ("" if chance is None else f"\u2003p = {chance:.2g}")
        records.append({"layer": label, "users": round(users, 4), "p": chance, "text": text})
    most = max(len(done.depths) for done in run.records)
    base = alt.Chart(
        alt.InlineData(records), width=_WIDTH * 2 // 3, height=alt.Step(_row_height(len(labels)))
    ).encode(
        y=alt.Y("layer:N", sort=labels, title="Layer", axis=alt.Axis(labelLimit=220)),
        x=alt.X(
            "users:Q",
            title="Users, mean over rounds",
            scale=alt.Scale(domain=[0, max(1, most)], nice=False),
            axis=alt.Axis(tickMinStep=1),
        ),
    )
    (colour,) = names.colours([run.config.method])
    bars = base.mark_bar(color=colour, opacity=0.75).encode(
        tooltip=[
            alt.Tooltip("layer:N", title="Layer"),
            alt.Tooltip("users:Q", title="Users", format=".2f"),
            *([alt.Tooltip("p:Q", title="p_l", format=".3~g")] if chances[0] is not None else []),
        ]
    )
    text = base.mark_text(align="left", dx=6, fontSize=11, color=INK).encode(text="text:N")
    return spec(alt.layer(bars, text))


def durations(run: LiveRun) -> Spec:
    """How long rounds took, and what they were to take at most."""
    alt = optional("altair")
    records = []
    for some in _in_bins(run.records, MOST_ROUNDS):
        # The slowest, but one that took too long before one that had more time.
        done = max(some, key=lambda done: (_over(done), done.seconds))
        records.append(
            {
                **_span(some),
                "round": done.round,
                "seconds": round(max(done.seconds, _SHORTEST), 5),
                "limit": done.limit and round(max(done.limit, _SHORTEST), 5),
                "kind": OVER if _over(done) else TOOK,
            }
        )
    limits = [record["limit"] for record in records if record["limit"] is not None]
    kinds = {TOOK: "#0072B2"}
    if limits:
        kinds[LIMIT] = "#59636e"
    if any(record["kind"] == OVER for record in records):
        kinds[OVER] = "#D55E00"
    colours = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    shown = legend() if limits else None
    x, y = _rounds(run), _magnitudes([*limits, *(record["seconds"] for record in records)])
    base = alt.Chart(alt.InlineData(records), width=_WIDTH, height=240)
    dots = base.mark_point(filled=True, opacity=1).encode(
        x=alt.X("round:Q", **x),
        y=alt.Y("seconds:Q", **y),
        color=alt.Color("kind:N", scale=colours, legend=shown),
        size=alt.when(alt.datum.kind == OVER).then(alt.value(70)).otherwise(alt.value(22)),
        tooltip=[
            alt.Tooltip("round:Q", title="Round"),
            alt.Tooltip("seconds:Q", title="Seconds", format=".4f"),
            *([alt.Tooltip("limit:Q", title="At most", format=".4f")] if limits else []),
        ],
    )
    if not limits:
        return spec(dots)
    limit = (
        base.transform_filter("isValid(datum.limit)")
        .transform_calculate(kind=f"'{LIMIT}'")
        .encode(
            x=alt.X("from:Q", **x),
            y=alt.Y("limit:Q", **y),
            color=alt.Color("kind:N", scale=colours, legend=shown),
        )
    )
    # A line ends where the last round begins, so each round has its own piece, too.
    line = limit.mark_line(strokeWidth=2, interpolate="step-after")
    pieces = limit.mark_rule(strokeWidth=2).encode(x2="to:Q")
    return spec(alt.layer(line, pieces, dots))


def _rounds(run: LiveRun, **axis: Any) -> dict[str, Any]:
    """The axis of rounds, each of which is one wide."""
    alt = optional("altair")
    last = run.records[-1].round
    ticks = {"tickCount": _TICKS} if last > _TICKS else {"values": list(range(1, last + 1))}
    return {
        "title": "Round",
        "scale": alt.Scale(domain=[0.5, last + 0.5], nice=False),
        "axis": alt.Axis(format=",d", **ticks, **axis),
    }


def _magnitudes(seconds: Sequence[float]) -> dict[str, Any]:
    """The axis of durations: a limit that is being learned is a hundred times the later ones."""
    alt = optional("altair")
    low, high = min(seconds) / 1.3, max(seconds) * 1.3
    ticks = [_between(low, high, steps) for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))]
    return {
        "title": "Duration",
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": alt.Axis(
            values=ticks[0] if len(ticks[0]) > 2 else ticks[1],
            labelExpr="datum.value < 1 ? format(1000 * datum.value, '.3~r') + ' ms' "
            ": format(datum.value, ',.3~r') + ' s'",
        ),
    }


def _between(low: float, high: float, steps: Sequence[float]) -> list[float]:
    numbers = (step * 10.0**power for power in range(-6, 7) for step in steps)
    return [number for number in numbers if low <= number <= high]


def _over(done: Row) -> bool:
    return done.limit is not None and done.seconds > done.limit


def _whole_columns(rounds: int) -> float:
    """A width that gives every column whole pixels, so that no seams are seen between them."""
    columns = rounds / -(-rounds // _COLUMNS)
    return _WIDTH // columns * columns


def _in_bins(records: Sequence[Row], most: int) -> list[Sequence[Row]]:
    """Rounds that follow each other together, as many in each."""
    size = -(-len(records) // most)
    return [records[i : i + size] for i in range(0, len(records), size)]


def _span(some: Sequence[Row]) -> dict[str, Any]:
    first, last = some[0].round, some[-1].round
    rounds = f"{first}" if first == last else f"{first} to {last}"
    return {"from": first - 0.5, "to": last + 0.5, "rounds": rounds}


def _row_height(rows: int) -> int:
    return 24 if rows <= 24 else 13
