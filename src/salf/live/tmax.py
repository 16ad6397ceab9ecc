"""T_max of live rounds: given in advance, or found and adapted while the run goes on."""

from collections.abc import Collection, Mapping
from math import ceil, inf, isfinite

import numpy as np

from salf.common.errors import SalfError
from salf.core.rows import Row
from salf.live.server import LiveServer
from salf.live.update import Update
from salf.worlds.fleet.deadlines import Auto, Deadline, DeadlineSchedule

TRIALS = 3  # rounds that wait for all users, from which T_max starts: the first ones are slow
FIRST = 60.0  # seconds that the first round may take
PATIENCE = 4.0  # times the slowest user's last round: what the other trials may take
SHORTEST, LONGEST = 1e-3, 600.0  # seconds; an adapted T_max stays between them


class TMax:
    """T_max of the next round.

    `Auto` starts with `TRIALS` rounds in which users have ample time, and takes from them the T_max
    at which users would have reached as many of their layers as it aims for. From then on it is
    adapted after each round (`Auto.after`). The server keeps what it is at.
    """

    def __init__(self, server: LiveServer, deadline: float | Deadline | None) -> None:
        if isinstance(deadline, int | float):
            deadline = DeadlineSchedule((float(deadline),))
        waits = server.method.asks.waits
        if deadline is None and not waits:
            raise SalfError(
                f"{server.method.name} needs a deadline, the time that a round may take."
            )
        self.server, self.deadline = server, None if waits else deadline
        self.adapts = isinstance(self.deadline, Auto)
        self._fastest: dict[str, float] = {}  # seconds of a step, of each user
        self._slowest = 0.0  # user in the last trial
        self._trials = 0

    @property
    def trying(self) -> bool:
        """Whether the next round is a trial, in which all users have the time they need."""
        return self.adapts and not self.server.t_max

    def seconds(self, t: int) -> float | None:
        """T_max of round t, which is the next one; None if rounds wait for everybody."""
        if self.trying:
            return min(FIRST, max(1.0, PATIENCE * self._slowest)) if self._slowest else FIRST
        return None if self.deadline is None else self.deadline.of(t, self.server.t_max)

    def learn(self, row: Row, asked: Collection[str], updates: Mapping[str, Update]) -> None:
        """Take in a round: its row, the users who got its question, and the updates used.

        Users that failed say nothing about time, nor do users who were still busy with an earlier
        round, so a user that hangs does not stretch T_max.
        """
        failed = {user for user, _ in row.rejected}
        counted = [user for user in row.depths if user in asked and user not in failed]
        if not isinstance(self.deadline, Auto) or not counted:
            return
        if self.trying:
            found = self._tried(counted, updates, self.deadline.reach)
        else:
            layers = len(row.reached)
            done = sum(layers + 1 - updates[user].first for user in counted if user in updates)
            found = self.deadline.after(self.server.t_max, done / (layers * len(counted)))
        if found is not None:
            self.server.t_max = min(max(found, SHORTEST), LONGEST)

    def _tried(
        self, users: Collection[str], updates: Mapping[str, Update], reach: float
    ) -> float | None:
        """T_max after a trial; None before the last of them."""
        for user in users:
            update, taken = updates.get(user), inf
            if update is not None and update.depth == 1:
                taken = update.seconds / update.steps
            self._fastest[user] = min(taken, self._fastest.get(user, inf))
        heard = [update.seconds for user, update in updates.items() if user in users]
        self._slowest = max(heard, default=self._slowest)
        self._trials += 1
        times = np.sort(np.outer(list(self._fastest.values()), self.server.done_after).ravel())
        known = times[np.isfinite(times)]
        if self._trials < TRIALS or not len(known):
            return None
        at = float(times[ceil(reach * len(times)) - 1])
        # If too many users did not finish, T_max starts beyond all that did.
        return at if isfinite(at) else 2 * float(known[-1])
