"""The page of a live run: its result, how far users got, and which updates were rejected."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from textwrap import shorten
from typing import Any

from salf.common.errors import SalfError
from salf.common.figures import Axis, Cells, Figure, Lanes, Line, Lines, Point, ordered, thinned
from salf.common.files import write_whole
from salf.core import rows
from salf.core.rows import Row
from salf.live.slow import slowness
from salf.live.users import user_name
from salf.methods import METHODS
from salf.report import names
from salf.report.charts import GREY, MEASURES
from salf.report.page import Chart, Page, PageBlock, Section, again
from salf.report.tables import Table
from salf.runs.folder import CONFIG, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config

PAGE = "live.html"
MOST_USERS = 100  # that have a row; so a page stays one that a browser opens at once
_MOST_REASONS = 30
_LONGEST_REASON = 110  # characters: it stands in one line
_COLUMNS = 120  # of the users' rounds
_MOST_LANES = 24  # users of the lanes
# Numbers that are others in every round, though the reason is the same.
_CHANGING = re.compile(r"(\bround|\blimit|\) is) [-+.\de]+")


@dataclass(frozen=True)
class LiveRun:
    """A live run: its closed rounds, and a summary once it is finished."""

    config: LiveConfig
    records: Sequence[Row]
    summary: Mapping[str, Any] | None

    @classmethod
    def of(cls, path: Path) -> "LiveRun":
        """The run in a folder, which may be at work: nothing is locked, and nothing changed."""
        folder = RunFolder(path)
        config = load_config(str(path / CONFIG), look=True) if (path / CONFIG).is_file() else None
        if not isinstance(config, LiveConfig):
            raise SalfError(f"{path} contains no live run.")
        # The summary is read before the rounds, since it comes after the last of them.
        summary = folder.summary()
        if not (records := rows.read(folder.rounds)):
            raise SalfError(f"{path} has no closed round yet; try again after the first round.")
        return cls(config, records, summary)

    @property
    def layers(self) -> list[str]:
        """Layers by number, and by name once the run is finished."""
        unnamed = [""] * len(self.records[0].reached)
        return names.layers((self.summary or {}).get("layers") or unnamed)

    @property
    def waits(self) -> bool:
        """Whether rounds waited for all users."""
        return self.records[-1].limit is None

    @cached_property
    def users(self) -> dict[str, str]:
        """Every user's label, the slowest last; also those of the config who never came."""
        factors = slowness(self.config.slow, self.config.users)
        slow = {user_name(number): factor for number, factor in enumerate(factors, 1)}
        found = slow.keys() | {user for row in self.records for user in row.depths}
        ordered = sorted(found, key=lambda user: (slow.get(user, 1.0), names.in_order(user)))
        return {user: names.user(user, slow.get(user, 1.0)) for user in ordered}

    @property
    def shown_users(self) -> dict[str, str]:
        """All users; or every n-th, which keeps the proportion of slow and fast ones."""
        return dict(list(self.users.items())[:: -(-len(self.users) // MOST_USERS)])


def write_live_page(folder: Path) -> Path:
    """Write the page of the live run in this folder, finished or not, and return its path."""
    write_whole(folder / PAGE, page(LiveRun.of(folder), folder).html())
    return folder / PAGE


def page(run: LiveRun, folder: Path) -> Page:
    """The run as a page."""
    drawn = curve(run)
    of_curve = (
        "Accuracy over the total duration of the rounds, without the time between them. The axis "
        "may not start at zero."
    )
    of_lanes = (
        "The last rounds: the time from the start of a round until a user's update arrived, in the "
        "colour of the first layer that it reached. The vertical line is the deadline T_max."
    )
    how = again(["replay", str(folder)], run.config.to_toml())
    return Page(
        f"{names.shown(run.config.method)} live on {names.data(run.config.data)}",
        [_result(run)],
        [
            Section(
                f"{MEASURES['accuracy']} over time",
                ["Not measured." if drawn is None else Chart(drawn, of_curve)],
            ),
            Section("A few rounds", [Chart(lanes(run), of_lanes)]),
            Section("How far each user got", _progress(run)),
            Section("Updates per layer", _layers(run)),
            Section("Round durations", [_durations(run)]),
            Section("Rejected updates", _rejected(run)),
            Section("Replay it", ["Replay the recorded depths in the simulator:", *how.blocks]),
        ],
    )


def _result(run: LiveRun) -> str:
    config = run.config
    time = "in rounds that wait for all users"
    if config.deadline is not None and not run.waits:
        time = f"with T_max = {names.deadline(config.deadline)} per round"
    seconds = names.duration(sum(row.seconds for row in run.records))
    end = f"Not finished: {len(run.records):,} of {config.rounds:,} rounds in {seconds}."
    if run.summary is not None:
        accuracy = run.summary["test_accuracy"]
        reached = "was not measured" if accuracy is None else f"is {accuracy:.4f}"
        end = f"Its test accuracy {reached} after {_count(run.records, 'round')} in {seconds}."
    return (
        f"{names.shown(config.method)} trains the model {config.given.get('model', config.model)} "
        f"on {names.data(config.data)} with {_count(range(config.users), 'user')}, {time}. {end}"
    )


def curve(run: LiveRun) -> Figure | None:
    """The accuracy over the seconds that rounds took; None if it was never measured."""
    method = run.config.method
    known = names.lines([method if method in METHODS else "salf"])[0]
    line = Line(names.shown(method), known.colour, bold=True)
    points, seconds = [], 0.0
    for row in run.records:
        seconds += row.seconds
        if row.accuracy is not None:
            points.append(Point(line.name, round(seconds, 4), round(row.accuracy, 6)))
    x = Axis("Seconds of training", domain=(0, round(seconds, 4) or 1.0))
    y = Axis(MEASURES["accuracy"])
    return Figure([Lines(thinned(points), [line], x, y, height=240)]) if points else None


def lanes(run: LiveRun) -> Figure:
    """The last rounds: when each user's update came, and how far it had got."""
    layers = [f"reached layer {label}" for label in run.layers]
    kinds = [Line("no update in time", GREY)]
    kinds += map(Line, layers, ordered(len(layers)))
    rounds = []
    for row in run.records[-3:]:
        users = [user for user in list(run.shown_users)[:_MOST_LANES] if user in row.depths]
        arrived = {u: at for u, at in row.arrived.items() if row.delivered(u)}
        pieces = [
            [[0, arrived.get(user, row.seconds), row.depths[user] if user in arrived else 0]]
            for user in users
        ]
        about = {"name": f"Round {row.round}", "end": row.seconds, "deadline": row.deadline}
        rounds.append({**about, "users": users, "lanes": pieces})
    return Figure([Lanes(kinds, rounds)])


def progress(run: LiveRun) -> Cells:
    """How far each user got over the rounds. Where it was not asked, there is nothing."""
    users, layers = run.shown_users, len(run.layers)
    size = -(-len(run.records) // _COLUMNS)  # rounds in a column
    bins = [run.records[i : i + size] for i in range(0, len(run.records), size)]
    values: list[list[float | None]] = []
    for user in users:
        parts = [[1 - (r.depths[user] - 1) / layers for r in b if user in r.depths] for b in bins]
        values.append([round(fmean(found), 4) if found else None for found in parts])
    ends = [(some[0].round, some[-1].round) for some in bins]
    columns = [f"{first}" if first == last else f"{first} to {last}" for first, last in ends]
    return Cells([*users.values()], columns, values, "Layers reached", "round", "user")


def _progress(run: LiveRun) -> list[PageBlock]:
    shown, there = len(run.shown_users), len(run.users)
    some = f"{shown} of the {there:,} users are shown. " * (shown < there)
    stopped = (
        "Every round waits for all users; no user is stopped early."
        if run.waits
        else "Backpropagation starts at the last layer. A user stopped by the deadline sends "
        "the layers it has completed."
    )
    caption = (
        f"{some}Layers that a user reached, on average; blank where it was not asked. A "
        "user that sent nothing, or whose update was rejected, reached no layer."
    )
    return [stopped, Chart(Figure([progress(run)]), caption)]


def _layers(run: LiveRun) -> list[PageBlock]:
    said = "Number of updates per layer, from the input to the output; mean over the rounds."
    counts = [fmean(each) for each in zip(*(row.reached for row in run.records), strict=True)]
    lines = [
        {"Layer": label, "Updates": f"{count:.1f}"}
        for label, count in zip(run.layers, counts, strict=True)
    ]
    if chances := run.records[-1].unreached:
        said += (
            " p_l is the probability that nobody reaches the layer: the layer's last step was "
            "divided by 1\u00a0−\u00a0p_l."
        )
        lines = [{**line, "p_l": f"{p:.2g}"} for line, p in zip(lines, chances, strict=True)]
    return [said, Table.of(lines)]


def _durations(run: LiveRun) -> str:
    limited = [row.seconds <= row.limit for row in run.records if row.limit is not None]
    middle, longest = (names.duration(of(r.seconds for r in run.records)) for of in (median, max))
    kept = "No round had a limit."
    if limited:
        count = f"{sum(limited):,} of {len(limited):,}"
        kept = f"{count} rounds closed within T_max plus the grace period."
    return f"{kept} The median is {middle}, the longest {longest}."


def _rejected(run: LiveRun) -> list[PageBlock]:
    """Rejected updates by user and reason, the most frequent first."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in run.records:
        for user, text in row.rejected:
            found.setdefault((_CHANGING.sub(r"\1 …", text), user), []).append(row.round)
    most = sorted(found.items(), key=lambda it: (-len(it[1]), it[1][0], names.in_order(it[0][1])))
    table = Table.of(
        {
            "Reason": shorten(reason, _LONGEST_REASON, placeholder=" …"),
            "User": user,
            "Times": f"{len(rounds):,}",
            "First round": f"{rounds[0]:,}",
            "Last round": f"{rounds[-1]:,}",
        }
        for (reason, user), rounds in most[:_MOST_REASONS]
    )
    blocks: list[PageBlock] = []
    if late := sum(row.late for row in run.records):
        blocks.append(f"{late:,} updates came after the round had closed, too late.")
    blocks.append(table if table.rows else "No update that arrived in time was rejected.")
    if more := most[_MOST_REASONS:]:
        blocks.append(f"{_count(more, 'more reason')} can be found in the run's log, live.log.")
    return blocks


def _count(found: Sequence[object], what: str) -> str:
    return f"{len(found):,} {what}" + "s" * (len(found) != 1)
