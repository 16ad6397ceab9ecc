"""The records of a live run, as far as it got."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from salf.common.errors import SalfError
from salf.core import rows
from salf.core.rows import Row
from salf.live.slow import slowness
from salf.live.users import user_name
from salf.report import names
from salf.runs.folder import CONFIG, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config

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
        config = load_config(str(path / CONFIG)) if (path / CONFIG).is_file() else None
        if not isinstance(config, LiveConfig):
            raise SalfError(f"{path} contains no live run.")
        # The summary is read before the rounds, since it comes after the last of them.
        summary = folder.summary()
        if not (records := rows.read(folder.rounds)):
            raise SalfError(f"{path} has no closed round yet; try again after the first round.")
        return cls(config, records, summary)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.records[0].reached)

    @property
    def layers(self) -> list[str]:
        """Layers by number, and by name once the run is finished."""
        return names.layers((self.summary or {}).get("layers") or [""] * self.depth)

    @cached_property
    def users(self) -> dict[str, str]:
        """Every user's label, the slowest last; also those of the config who never came."""
        slow = {
            user_name(number): factor
            for number, factor in enumerate(slowness(self.config.slow, self.config.users), 1)
        }
        found = slow.keys() | {user for done in self.records for user in done.depths}
        ordered = sorted(found, key=lambda user: (slow.get(user, 1.0), names.in_order(user)))
        return {user: names.user(user, slow.get(user, 1.0)) for user in ordered}


def answers(run: LiveRun) -> dict[str, Counter[str]]:
    """How each user's rounds went, in the order of `LiveRun.users`; each is counted once."""
    counted: dict[str, Counter[str]] = {user: Counter() for user in run.users}
    for done in run.records:
        refused = {user for user, _ in done.rejected}
        for user in done.depths:
            # What was used counts, even if a second update of its user was refused.
            outcomes = {
                "Finished": done.finished(user),
                "Partial": done.delivered(user),
                "Silent": user in done.silent,
                "Rejected": user in refused,
                "Nothing": True,  # it answered in time, and had no time for a layer
            }
            counted[user][next(name for name, so in outcomes.items() if so)] += 1
    return counted


def unused(run: LiveRun) -> list[tuple[tuple[str, str], list[int]]]:
    """The rounds of updates that were rejected, by user and reason, the most frequent first."""
    found: dict[tuple[str, str], list[int]] = {}
    for done in run.records:
        for user, text in done.rejected:
            found.setdefault((user, _CHANGING.sub(r"\1 …", text)), []).append(done.round)
    return sorted(found.items(), key=lambda it: (-len(it[1]), it[1][0], names.in_order(it[0][0])))
