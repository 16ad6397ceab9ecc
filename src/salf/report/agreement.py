"""A measured fleet compared with its live run: depths and round times, as figure and page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import Any

import numpy as np

from salf.common.files import write_whole
from salf.core.arrivals import Floats
from salf.live.agreement import Agreement
from salf.report import names
from salf.report.extra import check_extra, optional
from salf.report.live.run import LiveRun
from salf.report.page import Chart, Code, Page, Section
from salf.report.style import (
    INK,
    SHADES,
    SOFT,
    Records,
    Spec,
    legend,
    pictures,
    seconds_axis,
    spec,
    thinned,
)
from salf.report.tables import Table

LIVE, SIMULATED = "live", "simulated"
_COLOURS = {LIVE: INK, SIMULATED: "#D55E00"}
_WIDTH = 640
_MOST = 40  # users with bars: a page should not have to be scrolled for long
_FEW = 8  # stages, up to which the legend has all of them
_BEYOND = 1.5  # times the 99th percentile, where the axis of round times ends at the latest


def write_agreement(
    agreement: Agreement, folder: Path, fleet: Path, command: Sequence[str]
) -> list[Path]:
    """Write figure (PNG and SVG) and page beside the file of the fleet, under its name."""
    run = LiveRun.of(folder)
    check_extra()
    picture = pictures(figure(agreement, run))
    files = {
        **{fleet.with_suffix(f".{kind}"): content for kind, content in picture.items()},
        fleet.with_suffix(".html"): page(agreement, run, str(folder), command).html(),
    }
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def figure(agreement: Agreement, run: LiveRun) -> Spec:
    """Both charts below each other, with a title."""
    alt = optional("altair")
    title = alt.Title(
        f"{len(agreement.users)} users, live and simulated with the measured fleet",
        subtitle=[_depths_differ(agreement), _times_differ(agreement)],
        anchor="start",
        offset=12,
    )
    charts = [_depths(agreement, run), _times(agreement)]
    return spec(alt.vconcat(*charts, title=title, spacing=24).resolve_scale(color="independent"))


def page(agreement: Agreement, run: LiveRun, folder: str, command: Sequence[str]) -> Page:
    """The comparison as a page."""
    return Page(
        f"The fleet measured from {folder}, compared with its live run",
        [f"{_depths_differ(agreement)} {_times_differ(agreement)}", _what(agreement, run)],
        [
            Section(
                "Layers completed by each user",
                [_depths_chart(agreement, run), _users(agreement, run)],
            ),
            Section("Round durations", [_times_chart(agreement), _rounds(agreement)]),
            Section(
                "Reproduce this page",
                [
                    Code(join(["salf", *command])),
                    Code(run.config.to_toml(), "Config of the live run"),
                ],
            ),
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


def _what(agreement: Agreement, run: LiveRun) -> str:
    live, simulated = len(agreement.live_times), len(agreement.simulated_times)
    if live < len(run.records):
        compared = (
            f"A fleet was measured from every second of {len(run.records):,} rounds and simulated "
            f"for {simulated:,} rounds. It is compared with the {live:,} rounds left out."
        )
    else:
        compared = (
            f"The fleet was simulated for {simulated:,} rounds. It is compared with the same "
            f"{live:,} rounds that it was measured from, because there are too few to split."
        )
    low, high = (
        names.duration(each(agreement.deadlines)) if agreement.deadlines else ""
        for each in (min, max)
    )
    limit = f"T_max was {low}." if low == high else f"T_max ranged from {low} to {high}."
    return f"{compared} {limit if low else 'Rounds waited for all users.'}"


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
    columns = [
        agreement.finished(agreement.live),
        agreement.finished(agreement.simulated),
        agreement.live[:, 0],
        agreement.simulated[:, 0],
    ]
    rows = [
        [run.users.get(user, user), *(f"{share:.0%}" for share in shares), f"{difference:.3f}"]
        for user, *shares, difference in zip(
            agreement.users, *columns, agreement.variation, strict=True
        )
    ]
    means = [f"{share.mean():.0%}" for share in columns]
    return Table.of(
        [
            "User",
            "All layers, live",
            "All layers, simulated",
            "None, live",
            "None, simulated",
            "Difference",
        ],
        [*rows, ["Mean", *means, f"{agreement.variation.mean():.3f}"]],
    )


def _times_chart(agreement: Agreement) -> Chart:
    end = _end(agreement)
    beyond = [
        f"{(times > end).mean():.1%} of the {which} rounds (up to {names.duration(times.max())})"
        for which, times in _both(agreement)
        if (times > end).any()
    ]
    longer = f" {names.listed(beyond)} took longer than is shown." if beyond else ""
    return Chart(
        spec(_times(agreement)),
        "Cumulative distributions of the durations of live and simulated rounds.",
        f"The share of rounds that took at most a given time.{longer}",
    )


def _rounds(agreement: Agreement) -> Table:
    measures: dict[str, Callable[[Floats], Any]] = {
        "Mean": np.mean,
        "Median": np.median,
        "90th percentile": lambda times: np.quantile(times, 0.9),
        "99th percentile": lambda times: np.quantile(times, 0.99),
    }
    rows = []
    for name, of in measures.items():
        live, simulated = (float(of(times)) for _, times in _both(agreement))
        rows.append(
            [name, names.duration(live), names.duration(simulated), f"{simulated / live:.3f}"]
        )
    return Table.of(["Round duration", "Live", "Simulated", "Simulated / live"], rows)


def _both(agreement: Agreement) -> list[tuple[str, Floats]]:
    return [(LIVE, agreement.live_times), (SIMULATED, agreement.simulated_times)]


def _shown(agreement: Agreement) -> list[int]:
    """The users that have bars."""
    last = len(agreement.users) - 1
    return sorted({round(place) for place in np.linspace(0, last, min(_MOST, last + 1)).tolist()})


def _depths(agreement: Agreement, run: LiveRun) -> Any:
    """Two bars per user, of the shares of rounds by stages completed; all stages at the left."""
    alt = optional("altair")
    shown = _shown(agreement)
    labels = [run.users.get(agreement.users[user], agreement.users[user]) for user in shown]
    bars: Records = []
    texts: Records = []
    for user, label in zip(shown, labels, strict=True):
        total = int(agreement.stages[user])
        for which, depths in ((LIVE, agreement.live), (SIMULATED, agreement.simulated)):
            end = 0.0
            for count in range(total, -1, -1):
                if share := float(depths[user, count]):
                    bars.append(
                        {
                            "user": label,
                            "which": which,
                            "start": round(end, 4),
                            "end": round(end + share, 4),
                            "share": round(share, 4),
                            "done": round(count / total, 4),
                            "count": f"{count} of {total}",
                        }
                    )
                    end += share
            difference = f", difference {agreement.variation[user]:.2f}" * (which == SIMULATED)
            texts.append({"user": label, "which": which, "text": f"{which}{difference}"})
    y = alt.Y(
        "user:N",
        title=None,
        sort=labels,
        scale=alt.Scale(domain=labels, paddingInner=0.25),
        axis=alt.Axis(labelLimit=220, labelPadding=6, ticks=False, domain=False),
    )
    beside = alt.YOffset("which:N", sort=[LIVE, SIMULATED])
    drawn = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "start:Q",
                title="Share of rounds",
                scale=alt.Scale(domain=[0, 1], nice=False),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            x2="end:Q",
            y=y,
            yOffset=beside,
            color=alt.Color(
                "done:Q",
                scale=alt.Scale(domain=[0, 1], range=list(SHADES), interpolate="lab"),
                legend=_stages(int(agreement.stages.max()), run.depth),
            ),
            tooltip=[
                alt.Tooltip("user:N", title="User"),
                alt.Tooltip("which:N", title="Rounds"),
                alt.Tooltip("count:N", title="Layers completed"),
                alt.Tooltip("share:Q", title="Share of rounds", format=".1%"),
            ],
        )
    )
    told = (
        alt.Chart(alt.InlineData(texts))
        .mark_text(align="left", dx=6, fontSize=10, color=SOFT)
        .encode(x=alt.datum(1), y=y, yOffset=beside, text="text:N")
    )
    return alt.layer(drawn, told).properties(
        width=_WIDTH, height=alt.Step(32, **{"for": "position"})
    )


def _stages(total: int, layers: int) -> Any:
    """Few stages have a symbol each; of many, a gradient is the legend."""
    alt = optional("altair")
    common = {"title": "Layers completed", "titleFontWeight": "normal", "orient": "top"}
    if total > _FEW or total > layers:
        return alt.Legend(
            **common, format=".0%", values=[0, 0.5, 1], gradientLength=180, gradientThickness=10
        )
    return alt.Legend(
        **common,
        type="symbol",
        symbolType="square",
        symbolStrokeWidth=0,
        direction="horizontal",
        values=[round(count / total, 4) for count in range(total, -1, -1)],
        labelExpr=f"datum.value < 1e-6 ? 'none' : datum.value > 1 - 1e-6 ? 'all {total}' : "
        f"format({total} * datum.value, '.0f')",
    )


def _end(agreement: Agreement) -> float:
    """Where the axis of round times ends: a few very long rounds would leave no room for others."""
    longest = max(float(times.max()) for _, times in _both(agreement))
    usual = max(float(np.quantile(times, 0.99)) for _, times in _both(agreement))
    return min(1.02 * longest, _BEYOND * usual)


def _times(agreement: Agreement) -> Any:
    """The distribution functions of round times, and T_max if it was one for all rounds."""
    alt = optional("altair")
    end = _end(agreement)
    records = []
    for which, times in _both(agreement):
        seconds = np.sort(times)
        shares = np.arange(1, len(seconds) + 1) / len(seconds)
        curve = [(float(seconds[0]), 0.0)]
        curve += thinned(list(zip(seconds.tolist(), shares.tolist(), strict=True)))
        curve.append((max(end, curve[-1][0]), 1.0))
        records += [
            {"which": which, "seconds": round(at, 6), "share": round(share, 4)}
            for at, share in curve
        ]
    lines = (
        alt.Chart(alt.InlineData(records))
        .mark_line(interpolate="step-after", strokeWidth=2, clip=True)
        .encode(
            x=alt.X(
                "seconds:Q",
                title="Round duration",
                scale=alt.Scale(domain=[0, end], nice=False),
                axis=seconds_axis(end),
            ),
            y=alt.Y(
                "share:Q",
                title="Cumulative share of rounds",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            color=alt.Color(
                "which:N",
                sort=list(_COLOURS),
                scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
                legend=legend(),
            ),
            tooltip=[
                alt.Tooltip("which:N", title="Rounds"),
                alt.Tooltip("seconds:Q", title="Time, s", format=".3~g"),
                alt.Tooltip("share:Q", title="Share of rounds", format=".0%"),
            ],
        )
    )
    layers = [lines]
    if len(set(agreement.deadlines)) == 1 and agreement.deadlines[0] < end:
        limit = agreement.deadlines[0]
        at = alt.Chart(
            alt.InlineData([{"seconds": limit, "label": f"T_max {names.duration(limit)}"}])
        ).encode(x="seconds:Q")
        layers.append(at.mark_rule(color=SOFT, strokeDash=[4, 3], strokeWidth=1.5))
        layers.append(
            at.mark_text(align="left", dx=5, dy=8, y=0, fontSize=11, color=SOFT).encode(
                text="label:N"
            )
        )
    return alt.layer(*layers).properties(width=_WIDTH, height=220)
