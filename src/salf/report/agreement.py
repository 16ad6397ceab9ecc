"""A measured fleet compared with its live run: depths and round times, as figure and page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from salf.core.arrivals import Floats
from salf.live.agreement import Agreement
from salf.report import names
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Mark, Point
from salf.report.lines import figure as figure_of
from salf.report.live.run import LiveRun
from salf.report.page import Chart, Page, Section, again
from salf.report.style import (
    INK,
    RUST,
    SOFT,
    Axis,
    Records,
    Spec,
    named,
    of,
    pictures,
    shaded,
    spec,
    thinned,
    tips,
    write,
)
from salf.report.tables import Table

LIVE, SIMULATED = "live", "simulated"
_WIDTH = 640
_MOST = 40  # users with bars: a page should not have to be scrolled for long
_FEW = 8  # stages, up to which the legend has all of them
_BEYOND = 1.5  # times the 99th percentile, where the axis of round times ends at the latest


def write_agreement(
    agreement: Agreement, folder: Path, fleet: Path, command: Sequence[str]
) -> list[Path]:
    """Write figure (PNG and SVG) and page beside the file of the fleet, under its name."""
    run = LiveRun.of(folder)
    pictured = pictures(figure(agreement, run), fleet.with_suffix(""))
    html = page(agreement, run, str(folder), command).html()
    return write({**pictured, fleet.with_suffix(".html"): html})


def figure(agreement: Agreement, run: LiveRun) -> Spec:
    """Both charts below each other, with a title."""
    return figure_of(
        _depths(agreement, run),
        _times(agreement),
        title=f"{len(agreement.users)} users, live and simulated with the measured fleet",
        subtitle=[_depths_differ(agreement), _times_differ(agreement)],
    )


def page(agreement: Agreement, run: LiveRun, folder: str, command: Sequence[str]) -> Page:
    """The comparison as a page."""
    config = run.config.to_toml()
    return Page(
        f"The fleet measured from {folder}, compared with its live run",
        [f"{_depths_differ(agreement)} {_times_differ(agreement)}", _compared(agreement, run)],
        [
            Section(
                "Layers completed by each user",
                [_depths_chart(agreement, run), _users(agreement, run)],
            ),
            Section("Round durations", [_times_chart(agreement), _rounds(agreement)]),
            again(command, config, about="Config of the live run"),
        ],
    )


def _depths_differ(agreement: Agreement) -> str:
    worst = int(agreement.variation.argmax())
    return (
        f"Depths differ by {agreement.variation.mean():.3f} on average over users, and by at most "
        f"{agreement.variation[worst]:.3f} ({agreement.users[worst]})."
    )


def _times_differ(agreement: Agreement) -> str:
    ratio = agreement.simulated_seconds / agreement.live_seconds
    return (
        f"A round takes {names.duration(agreement.live_seconds)} live and "
        f"{names.duration(agreement.simulated_seconds)} simulated on average, a ratio of "
        f"{ratio:.3f}."
    )


def _compared(agreement: Agreement, run: LiveRun) -> str:
    live, simulated = len(agreement.live_times), len(agreement.simulated_times)
    if live < len(run.records):
        said = (
            f"A fleet was measured from every second of {len(run.records):,} rounds and simulated "
            f"for {simulated:,} rounds. It is compared with the {live:,} rounds left out."
        )
    else:
        said = (
            f"The fleet was simulated for {simulated:,} rounds. It is compared with the same "
            f"{live:,} rounds that it was measured from, because there are too few to split."
        )
    if not agreement.deadlines:
        return f"{said} Rounds waited for all users."
    low, high = (names.duration(each(agreement.deadlines)) for each in (min, max))
    return f"{said} T_max " + (f"was {low}." if low == high else f"ranged from {low} to {high}.")


def _depths_chart(agreement: Agreement, run: LiveRun) -> Chart:
    layers = run.depth
    steps = int(agreement.stages.max()) // layers
    counted = f"the {layers} layers" + (f" of each of up to {steps} local steps" * (steps > 1))
    shown = len(_shown(agreement))
    some = "" if shown == len(agreement.users) else f" {shown} evenly spaced users are shown."
    return Chart(
        spec(_depths(agreement, run)),
        "Two bars per user, live and simulated: the share of rounds by number of layers completed.",
        f"The share of rounds by how many of {counted} a user completed, from the last layer to "
        "the first. The difference between the two bars is their total variation distance: 0 if "
        f"they are equal, 1 if they do not overlap.{some}",
    )


def _users(agreement: Agreement, run: LiveRun) -> Table:
    shares = {
        "All layers, live": agreement.finished(agreement.live),
        "All layers, simulated": agreement.finished(agreement.simulated),
        "None, live": agreement.live[:, 0],
        "None, simulated": agreement.simulated[:, 0],
    }

    def row(name: str, of: Any) -> list[str]:
        cells = (f"{of(share):.0%}" for share in shares.values())
        return [name, *cells, f"{of(agreement.variation):.3f}"]

    rows = [
        row(run.users.get(user, user), lambda values, i=i: values[i])
        for i, user in enumerate(agreement.users)
    ]
    return Table(["User", *shares, "Difference"], [*rows, row("Mean", np.mean)])


def _times_chart(agreement: Agreement) -> Chart:
    end = _end(agreement)
    beyond = [
        f"{(times > end).mean():.1%} of the {which} rounds (up to {names.duration(times.max())})"
        for which, times in _both(agreement)
        if (times > end).any()
    ]
    longer = f" {names.listed(beyond)} took longer than is shown." if beyond else ""
    return Chart(
        figure_of(_times(agreement)),
        "Cumulative distributions of the durations of live and simulated rounds.",
        f"The share of rounds that took at most a given time.{longer}",
    )


def _rounds(agreement: Agreement) -> Table:
    quantiles = {"Median": 0.5, "90th percentile": 0.9, "99th percentile": 0.99}
    rows = []
    for name in ("Mean", *quantiles):
        live, simulated = (
            float(times.mean() if name == "Mean" else np.quantile(times, quantiles[name]))
            for _, times in _both(agreement)
        )
        both = [names.duration(live), names.duration(simulated)]
        rows.append([name, *both, f"{simulated / live:.3f}"])
    return Table(["Round duration", "Live", "Simulated", "Simulated / live"], rows)


def _both(agreement: Agreement) -> list[tuple[str, Floats]]:
    return [(LIVE, agreement.live_times), (SIMULATED, agreement.simulated_times)]


def _shown(agreement: Agreement) -> list[int]:
    """The users that have bars."""
    last = len(agreement.users) - 1
    return sorted({round(place) for place in np.linspace(0, last, min(_MOST, last + 1)).tolist()})


def _depths(agreement: Agreement, run: LiveRun) -> Any:
    """Two bars per user, of the shares of rounds by stages completed; all stages at the left."""
    shown = _shown(agreement)
    labels = [run.users.get(agreement.users[user], agreement.users[user]) for user in shown]
    bars: Records = []
    texts: Records = []
    for user, label in zip(shown, labels, strict=True):
        total = int(agreement.stages[user])
        for which, depths in ((LIVE, agreement.live), (SIMULATED, agreement.simulated)):
            shares = depths[user, total::-1]
            ends = np.cumsum(shares)
            bars += [
                {
                    "user": label,
                    "which": which,
                    "start": round(float(end - share), 4),
                    "end": round(float(end), 4),
                    "share": round(float(share), 4),
                    "done": round(1 - missing / total, 4),
                    "count": f"{total - missing} of {total}",
                }
                for missing, (share, end) in enumerate(zip(shares, ends, strict=True))
                if share
            ]
            difference = f", difference {agreement.variation[user]:.2f}" * (which == SIMULATED)
            texts.append({"user": label, "which": which, "text": f"{which}{difference}"})
    place = {
        "y": named("user", labels, labelPadding=6, ticks=False, domain=False).scale(
            domain=labels, paddingInner=0.25
        ),
        "yOffset": alt.YOffset("which:N", sort=[LIVE, SIMULATED]),
    }
    axis = Axis("Share of rounds", percent=True, domain=(0, 1)).options()
    drawn = of(bars).mark_bar(stroke="white", strokeWidth=0.5)
    told = of(texts).mark_text(align="left", dx=6, fontSize=10, color=SOFT)
    return alt.layer(
        drawn.encode(
            x=alt.X("start:Q", **axis),
            x2="end:Q",
            color=shaded("done", "Layers completed", **_legend(agreement, run)),
            tooltip=tips(
                user="User",
                which="Rounds",
                count="Layers completed",
                share=("Share of rounds", ".1%"),
            ),
            **place,
        ),
        told.encode(x=alt.datum(1), text="text:N", **place),
    ).properties(width=_WIDTH, height=alt.Step(32, **{"for": "position"}))


def _legend(agreement: Agreement, run: LiveRun) -> dict[str, Any]:
    """Few stages have a symbol each; of many, a gradient is the legend."""
    total = int(agreement.stages.max())
    if total > _FEW or total > run.depth:
        return {}
    return {
        "type": "symbol",
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "direction": "horizontal",
        "values": [round(count / total, 4) for count in range(total, -1, -1)],
        "labelExpr": f"datum.value < 1e-6 ? 'none' : datum.value > 1 - 1e-6 ? 'all {total}' : "
        f"format({total} * datum.value, '.0f')",
    }


def _end(agreement: Agreement) -> float:
    """Where the axis of round times ends: a few very long rounds would leave no room for others."""
    longest = max(float(times.max()) for _, times in _both(agreement))
    usual = max(float(np.quantile(times, 0.99)) for _, times in _both(agreement))
    return min(1.02 * longest, _BEYOND * usual)


def _times(agreement: Agreement) -> Lines:
    """The distribution functions of round times, and T_max if it was one for all rounds."""
    end = _end(agreement)
    points = []
    for which, times in _both(agreement):
        seconds = np.sort(times)
        shares = np.arange(1, len(seconds) + 1) / len(seconds)
        curve = [(float(seconds[0]), 0.0)]
        curve += thinned(list(zip(seconds.tolist(), shares.tolist(), strict=True)))
        curve.append((max(end, curve[-1][0]), 1.0))
        points += [Point(which, round(at, 6), round(share, 4)) for at, share in curve]
    limits = [limit for limit in set(agreement.deadlines) if len(set(agreement.deadlines)) == 1]
    return Lines(
        points,
        [Line(LIVE, INK), Line(SIMULATED, RUST)],
        x=Axis("Round duration", seconds=True, domain=(0, end)),
        y=Axis("Cumulative share of rounds", percent=True, domain=(0, 1)),
        steps=True,
        marks=[Mark(each, f"T_max {names.duration(each)}") for each in limits if each < end],
        widest=_WIDTH,
    )
