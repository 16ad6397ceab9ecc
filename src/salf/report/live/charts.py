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
    last = run.records[-1].round
    x = style.Axis("Round", domain=(0.5, last + 0.5), ticks=_ticks(last)).options()
    rows = style.named("user", order, labelFontSize=11 if len(users) <= 24 else 10)
    width, height = _whole_columns(len(run.records)), alt.Step(_row_height(len(users)))
    chart = style.of(records, width=width, height=height).mark_rect()
    return style.spec(
        chart.encode(
            x=alt.X("from:Q", **x),
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
    points, last = [], run.records[-1].round
    for some in _in_bins(run.records, MOST_ROUNDS):
        # The slowest, but one that took too long before one that had more time.
        done = max(some, key=lambda done: (_over(done), done.seconds))
        kind = OVER if _over(done) else TOOK
        points.append(Point(kind, done.round, round(max(done.seconds, _SHORTEST), 5)))
        if done.limit is not None:
            limit, span = round(max(done.limit, _SHORTEST), 5), _span(some)
            points += [Point(LIMIT, span[end], limit) for end in ("from", "to")]
    kinds = {TOOK: "#0072B2", OVER: style.RUST, LIMIT: style.SOFT}
    there = {point.line for point in points}
    # A limit that is being learned is a hundred times the later ones.
    seconds = [point.mean for point in points]
    chart = Lines(
        points,
        [Line(kind, kinds[kind], dashed=kind == LIMIT) for kind in kinds if kind in there],
        x=style.Axis("Round", domain=(0.5, last + 0.5), ticks=_ticks(last)),
        y=style.Axis(
            "Duration", log=True, seconds=True, domain=(min(seconds) / 1.3, max(seconds) * 1.3)
        ),
        interval="bar",
        joined=False,
        height=240,
        widest=_WIDTH,
    )
    return figure(chart)


def _ticks(last: int) -> list[int]:
    """Whole rounds, of many some."""
    return list(range(1, last + 1)) if last <= _TICKS else []


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
