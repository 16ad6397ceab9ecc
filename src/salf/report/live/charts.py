"""Charts of a live run, as Vega-Lite: accuracy, how far users got, layers, durations."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import Any

from salf.core.rows import Row
from salf.report import names, style
from salf.report.charts import MEASURES, Measure
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Point, figure
from salf.report.live.run import LiveRun

_WIDTH = 740
_FEW = 40  # points of a curve that are drawn, and not only there to be hovered over
_COLUMNS = 120  # of the users' rounds
MOST_USERS = 100  # that have a row; so a page stays one that a browser opens at once
MOST_ROUNDS = 400
_TICKS = 12
_SHORTEST = 1e-5  # seconds: an axis of magnitudes has no zero
TOOK, LIMIT, OVER = "a round", "limit, T_max + grace", "round over its limit"


def curve(run: LiveRun, measure: Measure) -> style.Spec | None:
    """A measure over the seconds that rounds took; None if it was never measured."""
    method = names.method(run.config.method)
    points, seconds = [], 0.0
    for done in run.records:
        seconds += done.seconds
        value = done.accuracy if measure == "accuracy" else done.train_loss
        if value is not None and isfinite(value):
            points.append(Point(method, round(seconds, 4), round(value, 6)))
    if not points:
        return None
    points = style.thinned(points)
    chart = Lines(
        points,
        [Line(method, names.colours([run.config.method])[0], bold=True)],
        x=style.Axis("Seconds of training", domain=(0, round(seconds, 4) or 1.0)),
        y=style.Axis(MEASURES[measure]),
        interval="bar" if len(points) <= _FEW else "band",
        height=240,
        widest=_WIDTH,
    )
    return figure(chart)


def shown_users(run: LiveRun) -> dict[str, str]:
    """All users; or every n-th, which keeps the proportion of slow and fast ones."""
    users = list(run.users.items())
    return dict(users[:: -(-len(users) // MOST_USERS)])


def progress(run: LiveRun) -> style.Spec:
    """How far each user got over the rounds. Where it was not asked, there is nothing."""
    users, total = shown_users(run), run.depth
    records = []
    for some in _in_bins(run.records, _COLUMNS):
        for user, label in users.items():
            depths = [done.depths[user] for done in some if user in done.depths]
            if depths:
                done = fmean((total + 1 - depth) / total for depth in depths)
                records.append(
                    {"user": label, **_span(some), "asked": len(depths), "done": round(done, 4)}
                )
    order = list(users.values())
    rows = style.named("user", order, labelFontSize=11 if len(users) <= 24 else 10)
    width, height = _whole_columns(len(run.records)), alt.Step(_row_height(len(users)))
    chart = style.of(records, width=width, height=height).mark_rect()
    return style.spec(
        chart.encode(
            x=alt.X("from:Q", **_rounds(run, grid=False)),
            x2="to:Q",
            y=rows.scale(domain=order, paddingInner=0.12),
            color=style.shaded("done", "Layers reached"),
            tooltip=style.tips(
                user="User",
                rounds="Rounds",
                asked=("Asked in", "d"),
                done=("Layers reached", ".0%"),
            ),
        )
    )


def durations(run: LiveRun) -> style.Spec:
    """How long rounds took, and what they were to take at most."""
    records: style.Records = []
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
    there = {TOOK, *([LIMIT] if limits else []), *(record["kind"] for record in records)}
    kinds = {TOOK: "#0072B2", LIMIT: style.SOFT, OVER: style.RUST}
    colours = {kind: colour for kind, colour in kinds.items() if kind in there}
    colour = style.coloured("kind", colours, style.legend() if limits else None)
    x, y = _rounds(run), _magnitudes([*limits, *(record["seconds"] for record in records)])
    at_most: dict[str, Any] = {"limit": ("At most", ".4f")} if limits else {}
    base = style.of(records, width=_WIDTH, height=240)
    dots = base.mark_point(filled=True, opacity=1).encode(
        x=alt.X("round:Q", **x),
        y=alt.Y("seconds:Q", **y),
        color=colour,
        size=alt.when(alt.datum.kind == OVER).then(alt.value(70)).otherwise(alt.value(22)),
        tooltip=style.tips(round=("Round", "d"), seconds=("Seconds", ".4f"), **at_most),
    )
    if not limits:
        return style.spec(dots)
    limit = base.transform_filter("isValid(datum.limit)").transform_calculate(kind=f"'{LIMIT}'")
    limit = limit.encode(x=alt.X("from:Q", **x), y=alt.Y("limit:Q", **y), color=colour)
    # A line ends where the last round begins, so each round has its own piece, too.
    line = limit.mark_line(strokeWidth=2, interpolate="step-after")
    pieces = limit.mark_rule(strokeWidth=2).encode(x2="to:Q")
    return style.spec(alt.layer(line, pieces, dots))


def _rounds(run: LiveRun, **axis: Any) -> dict[str, Any]:
    """The axis of rounds, each of which is one wide."""
    last = run.records[-1].round
    ticks = {"tickCount": _TICKS} if last > _TICKS else {"values": list(range(1, last + 1))}
    return {
        "title": "Round",
        "scale": alt.Scale(domain=[0.5, last + 0.5], nice=False),
        "axis": alt.Axis(format=",d", **ticks, **axis),
    }


def _magnitudes(seconds: Sequence[float]) -> dict[str, Any]:
    """The axis of durations: a limit that is being learned is a hundred times the later ones."""
    low, high = min(seconds) / 1.3, max(seconds) * 1.3
    few, many = (
        [n for n in (step * 10.0**p for p in range(-6, 7) for step in steps) if low <= n <= high]
        for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))
    )
    ticks = few if len(few) > 2 else many
    return style.Axis("Duration", log=True, seconds=True, ticks=ticks, domain=(low, high)).options()


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
