"""The page of a live run: its result, how far users got, and which updates were rejected."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any

from salf.common.figures import Cells, Figure, Lanes, Line, thinned
from salf.core.rows import Row
from salf.live.slow import slowness
from salf.live.users import user_name
from salf.report import names
from salf.report.page import Chart, Page, PageBlock, Section, again
from salf.report.parts import AXES, GREY, accuracy_over, explained, layer_lines
from salf.report.tables import Table
from salf.report.texts import text
from salf.runs.live_config import LiveConfig
from salf.runs.run import Result
from salf.runs.training import History

PAGE = "live.html"
MOST_USERS = 100  # that have a row; so a page stays one that a browser opens at once
_MOST_REASONS = 30
_LONGEST_REASON = 110  # characters: it stands in one line
USERS = 20  # of one round that are shown
# Numbers that are others in every round, though the reason is the same.
_CHANGING = re.compile(r"(\bround|\blimit|\) is) [-+.\de]+")


@dataclass(frozen=True)
class LiveRun:
    """A live run: its closed rounds, and a summary once it is finished."""

    config: LiveConfig
    records: Sequence[Row]
    summary: Mapping[str, Any] | None

    @property
    def layers(self) -> list[str]:
        """Layers by number, and by name once the run is finished."""
        return names.layers(self.named)

    @property
    def named(self) -> list[str]:
        """The names of layers, empty before the end."""
        return (self.summary or {}).get("layers") or [""] * len(self.records[0].reached)

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


def page(run: LiveRun, folder: Path) -> Page:
    """The run as a page."""
    config, drawn = run.config, curve(run)
    result = Result(config, History(tuple(run.records), {}), {"layers": run.named})
    method = {names.method(config.method): [result]}
    shown, there = len(run.shown_users), len(run.users)
    some = f"{shown} of the {there:,} users are shown. " * (shown < there)
    far = Chart(Figure([progress(run)]), some + text("live.progress"))
    how = text("live.waits" if run.waits else "live.stopped")
    return Page(
        f"{names.method(config.method)} live on {names.data(config.data)}",
        [_result(run)],
        [
            Section(
                f"{AXES['accuracy']} over time",
                [Chart(drawn, text("live.curve")) if drawn else "Not measured."],
            ),
            Section("A few rounds", [Chart(lanes(run), text("live.lanes")), last_round(run)]),
            *explained(method, [], config.cohort_size()),
            Section("How far each user got", [how, far]),
            Section("Round durations", [_durations(run)]),
            Section("Rejected updates", _rejected(run)),
            *again(["replay", str(folder)], config.to_toml(), heading="Replay it"),
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
        f"{names.method(config.method)} trains the model {config.given.get('model', config.model)} "
        f"on {names.data(config.data)} with {_count(range(config.users), 'user')}, {time}. {end}"
    )


def curve(run: LiveRun) -> Figure | None:
    """The accuracy over the seconds that rounds took; None if it was never measured."""
    line = replace(names.lines([run.config.method])[0], dashed=False, bold=True)
    measured = any(row.accuracy is not None for row in run.records)
    return accuracy_over("seconds", {line: [run.records]}) if measured else None


def lanes(run: LiveRun) -> Figure:
    """The last rounds: when each user's update came, and how far it had got."""
    kinds, rounds = [Line("no update in time", GREY)], []
    for row in run.records[-3:]:
        users = [user for user in list(run.shown_users)[:USERS] if user in row.depths]
        arrived = {u: at for u, at in row.arrived.items() if row.delivered(u)}
        pieces = [
            [[0, arrived.get(user, row.seconds), row.depths[user] if user in arrived else 0]]
            for user in users
        ]
        about = {"round": row.round, "seconds": row.seconds, "deadline": row.deadline}
        rounds.append({**about, "users": users, "pieces": pieces})
    return Figure([Lanes("", kinds + layer_lines(run.layers, "reached layer"), rounds)])


def last_round(run: LiveRun) -> Table:
    """How far users got in the last round, and why no further."""
    row, layers, lines = run.records[-1], run.layers, []
    rejected = dict(row.rejected)
    for user, label in [each for each in run.shown_users.items() if each[0] in row.depths][:USERS]:
        depth = row.depths[user]
        how = "late" if user in row.silent else "completed no layer"
        how = f"reached layer {layers[depth - 1]}" if depth <= len(layers) else how
        how = rejected.get(user) or ("finished" if row.finished(user) else how)
        reached = "■" * (len(layers) + 1 - depth) + "□" * (depth - 1)
        lines.append({"User": label, "Layers": reached, "Round": how})
    more = len(row.depths) - len(lines)
    caption = f"Round {row.round}" + f", {len(lines)} of {len(row.depths)} users" * bool(more)
    return Table.of(lines, caption)


def progress(run: LiveRun) -> Cells:
    """How far each user got over the rounds. Where it was not asked, there is nothing."""
    users, layers, rounds = run.shown_users, len(run.layers), thinned(run.records)
    values = [
        [round(1 - (r.depths[user] - 1) / layers, 4) if user in r.depths else None for r in rounds]
        for user in users
    ]
    columns = [f"{row.round}" for row in rounds]
    return Cells([*users.values()], columns, values, "Layers reached", "round", "user")


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
        for user, reason in row.rejected:
            found.setdefault((_CHANGING.sub(r"\1 …", reason), user), []).append(row.round)
    most = sorted(found.items(), key=lambda it: (-len(it[1]), it[1][0], names.in_order(it[0][1])))
    table = Table.of(
        {"Reason": shorten(reason, _LONGEST_REASON, placeholder=" …"), "User": user}
        | {"Times": f"{len(rounds):,}", "Rounds": f"{rounds[0]:,} to {rounds[-1]:,}"}
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
