"""A measured fleet compared with its live run: depths and round times, as figure and page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from salf.core.arrivals import Floats, evenly
from salf.live.agreement import Agreement
from salf.report import names, style
from salf.report.extra import alt
from salf.report.lines import Line, Lines, Mark, Point
from salf.report.lines import figure as figure_of
from salf.report.live import LiveRun
from salf.report.page import Chart, Page, Section, again
from salf.report.tables import Table

LIVE, SIMULATED = "live", "simulated"
_WIDTH = 640
_MOST = 40  # users with bars: a page should not have to be scrolled for long
_BEYOND = 1.5  # times the 99th percentile, where the axis of round times ends at the latest


def write_agreement(
    agreement: Agreement, folder: Path, fleet: Path, command: Sequence[str]
) -> list[Path]:
    """Write figure (PNG and SVG) and page beside the file of the fleet, under its name."""
    run = LiveRun.of(folder)
    pictured = style.pictures(figure(agreement, run), fleet.with_suffix(""))
    html = page(agreement, run, str(folder), command).html()
    return style.write({**pictured, fleet.with_suffix(".html"): html})


def figure(agreement: Agreement, run: LiveRun) -> style.Spec:
    """Both charts below each other, with a title."""
    return figure_of(
        _depths(agreement, run),
        _times(agreement),
        title=f"{len(agreement.users)} users, live and simulated with the measured fleet",
        subtitle=_differences(agreement),
    )


def page(agreement: Agreement, run: LiveRun, folder: str, command: Sequence[str]) -> Page:
    """The comparison as a page."""
    layers, shown = len(run.layers), len(_shown(agreement))
    steps = int(agreement.stages.max()) // layers
    counted = f"the {layers} layers" + (f" of each of up to {steps} local steps" * (steps > 1))
    some = "" if shown == len(agreement.users) else f" {shown} evenly spaced users are shown."
    depths = Chart(
        style.spec(_depths(agreement, run)),
        f"The part of the rounds by how many of {counted} a user completed, from the last layer to "
        "the first. The difference between the two bars is their total variation distance: 0 if "
        f"they are equal, 1 if they do not overlap.{some}",
    )
    end = _end(agreement)
    beyond = [
        f"{(times > end).mean():.1%} of the {which} rounds (up to {names.duration(times.max())})"
        for which, times in _both(agreement)
        if (times > end).any()
    ]
    longer = f" {names.listed(beyond)} took longer than is shown." if beyond else ""
    times = Chart(
        figure_of(_times(agreement)),
        f"The part of the rounds that took at most a given time.{longer}",
    )
    return Page(
        f"The fleet measured from {folder}, compared with its live run",
        [" ".join(_differences(agreement)), _compared(agreement, run)],
        [
            Section("Layers completed by each user", [depths, _users(agreement, run)]),
            Section("Round durations", [times]),
            again(command, run.config.to_toml(), about="Config of the live run"),
        ],
    )


def _differences(agreement: Agreement) -> list[str]:
    worst = int(agreement.variation.argmax())
    live, simulated = agreement.live_seconds, agreement.simulated_seconds
    return [
        f"Depths differ by {agreement.variation.mean():.3f} on average over users, and by at most "
        f"{agreement.variation[worst]:.3f} ({agreement.users[worst]}).",
        f"A round takes {names.duration(live)} live and {names.duration(simulated)} simulated on "
        f"average, a ratio of {simulated / live:.3f}.",
    ]


def _compared(agreement: Agreement, run: LiveRun) -> str:
    live, simulated = len(agreement.live_times), len(agreement.simulated_times)
    said = (
        f"A fleet was measured from every second of {len(run.records):,} rounds and simulated "
        f"for {simulated:,} rounds. It is compared with the {live:,} rounds left out."
    )
    if live >= len(run.records):
        said = (
            f"The fleet was simulated for {simulated:,} rounds. It is compared with the same "
            f"{live:,} rounds that it was measured from, because there are too few to split."
        )
    if not agreement.deadlines:
        return f"{said} Rounds waited for all users."
    low, high = (names.duration(each(agreement.deadlines)) for each in (min, max))
    return f"{said} T_max " + (f"was {low}." if low == high else f"ranged from {low} to {high}.")


def _users(agreement: Agreement, run: LiveRun) -> Table:
    parts = {
        "All layers, live": agreement.finished(agreement.live),
        "All layers, simulated": agreement.finished(agreement.simulated),
        "None, live": agreement.live[:, 0],
        "None, simulated": agreement.simulated[:, 0],
    }

    def row(name: str, of: Any) -> list[str]:
        cells = (f"{of(part):.0%}" for part in parts.values())
        return [name, *cells, f"{of(agreement.variation):.3f}"]

    rows = [
        row(run.users.get(user, user), lambda values, i=i: values[i])
        for i, user in enumerate(agreement.users)
    ]
    return Table(["User", *parts, "Difference"], [*rows, row("Mean", np.mean)])


def _both(agreement: Agreement) -> list[tuple[str, Floats]]:
    return [(LIVE, agreement.live_times), (SIMULATED, agreement.simulated_times)]


def _depths(agreement: Agreement, run: LiveRun) -> Any:
    """Two bars per user, of the parts of the rounds by stages completed; all stages at the left."""
    bars: style.Records = []
    for user in _shown(agreement):
        label = run.users.get(agreement.users[user], agreement.users[user])
        total = int(agreement.stages[user])
        for which, depths in ((LIVE, agreement.live), (SIMULATED, agreement.simulated)):
            parts = depths[user, total::-1]
            bars += [
                {
                    "user": f"{label}, {which}",
                    "start": round(float(end - part), 4),
                    "end": round(float(end), 4),
                    "part": round(float(part), 4),
                    "done": round(1 - missing / total, 4),
                    "count": f"{total - missing} of {total}",
                }
                for missing, (part, end) in enumerate(zip(parts, np.cumsum(parts), strict=True))
                if part
            ]
    labels = list(dict.fromkeys(bar["user"] for bar in bars))
    x = style.Axis("Part of the rounds", percent=True, domain=(0, 1)).options()
    drawn = style.of(bars, width=_WIDTH, height=alt.Step(16)).mark_bar(stroke="white")
    return drawn.encode(
        x=alt.X("start:Q", **x),
        x2="end:Q",
        y=style.named("user", labels, ticks=False, domain=False),
        color=style.shaded("done", "Layers completed"),
        tooltip=style.tips(
            user="User", count="Layers completed", part=("Part of the rounds", ".1%")
        ),
    )


def _shown(agreement: Agreement) -> list[int]:
    """The users that have bars."""
    return [int(user) for user in evenly(np.arange(len(agreement.users)), _MOST)]


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
        parts = np.arange(1, len(seconds) + 1) / len(seconds)
        curve = [(float(seconds[0]), 0.0)]
        curve += style.thinned(list(zip(seconds.tolist(), parts.tolist(), strict=True)))
        curve.append((max(end, curve[-1][0]), 1.0))
        points += [Point(which, round(at, 6), round(part, 4)) for at, part in curve]
    limits = [limit for limit in set(agreement.deadlines) if len(set(agreement.deadlines)) == 1]
    return Lines(
        points,
        [Line(LIVE, style.INK), Line(SIMULATED, style.RUST)],
        x=style.Axis("Round duration", seconds=True, domain=(0, end)),
        y=style.Axis("Rounds that took so long at most", percent=True, domain=(0, 1)),
        steps=True,
        marks=[Mark(each, f"T_max {names.duration(each)}") for each in limits if each < end],
        widest=_WIDTH,
    )
