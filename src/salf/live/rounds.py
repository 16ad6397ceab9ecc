"""A round by the clock: ask everyone, take what comes, close in time. Whatever carries messages.

The round ends T_max and a grace period after it began, or when nobody is left who could answer.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import NamedTuple, Protocol

from salf.common.errors import SalfError, in_one_line
from salf.core.rows import Row
from salf.live.server import LiveServer
from salf.live.tmax import TMax
from salf.live.update import Rejected, Task
from salf.worlds.fleet.deadlines import Deadline

log = logging.getLogger("salf.live")

LONGEST = 600.0  # seconds between two rounds when all users fail
SAY = 30.0  # seconds after which a round without a deadline says for whom it waits
SAY_WAITING = 2.0  # seconds without anybody to ask after which that is said
PAUSE = 0.25  # seconds at most until the next look at who is there and who is awaited

Say = Callable[[str], None]


class Answer(NamedTuple):
    """What came from a user: an update as bytes, or the reason why there is none.

    Who it is from, and which round's question it answers, the link knows and not the user.
    """

    user: str
    round: int
    content: bytes | Rejected


class Link(Protocol):
    """How a server and its users reach each other."""

    def users(self) -> Collection[str]:
        """Everyone who takes part: known, and not known to be gone."""

    def free(self) -> Collection[str]:
        """Users who can be asked now: not still at work on what they were asked before."""

    def send(self, task: Task, users: Collection[str]) -> None:
        """Ask those of these users who are free."""

    def awaited(self) -> Collection[str]:
        """Users asked last who have not answered, and still may."""

    def receive(self, seconds: float) -> Sequence[Answer]:
        """What has come, also of earlier rounds; waits at most so long for the first of it."""


def wait_for(users: int, present: Callable[[], Collection[object]], say: Say) -> None:
    """Before the first round only: after it, nobody is waited for."""
    there = -1
    while (now := len(present())) < users:
        if now != there:
            say(f"{now} of {users} users have joined; waiting for the others.")
        there = now
        time.sleep(0.2)


class Grace:
    """How long after T_max an answer may arrive: the time messages take. Fixed, or learned.

    Learned, it is `FACTOR` times the overhead of the slowest user: the time that its answers need
    beyond the work it reports, which nine of its last ten did not exceed. The `tolerate` largest
    overheads and a tenth of all do not count, so few users cannot stretch it, whatever they report;
    and it is at most `most`, and `PART` times T_max (or `first`, if that is longer).
    """

    FACTOR, PART = 1.5, 10.0
    LATELY, USERS = 20, 1_000  # answers of a user, and users heard last, that are remembered
    ENOUGH = 8  # answers before it is learned from them

    def __init__(
        self,
        fixed: float | None = None,
        *,
        first: float = 1.0,
        most: float = 60.0,
        tolerate: int = 1,
    ) -> None:
        if fixed is not None and not 0 <= fixed < inf:
            raise SalfError(f"the grace period must be a time of at least 0, not {fixed} seconds.")
        self.fixed, self.first, self.most, self.tolerate = fixed, first, most, tolerate
        self._seen: dict[str, deque[float]] = {}  # of users, those heard last at the end

    def seconds(self, t_max: float | None) -> float:
        """The grace period of a round with this deadline."""
        if self.fixed is not None:
            return self.fixed
        if sum(map(len, self._seen.values())) < self.ENOUGH:
            return self.first
        each = sorted(sorted(own)[int(0.9 * (len(own) - 1))] for own in self._seen.values())
        ignored = min(max(self.tolerate, len(each) // 10), len(each) - 1)
        most = self.most if t_max is None else min(self.most, max(self.PART * t_max, self.first))
        return min(self.FACTOR * each[-1 - ignored], most)

    def learn(self, user: str, overhead: float) -> None:
        """Take in how long an answer took beyond its user's work."""
        self._seen[user] = self._seen.pop(user, deque(maxlen=self.LATELY))
        self._seen[user].append(max(0.0, overhead))
        if len(self._seen) > self.USERS:
            del self._seen[next(iter(self._seen))]


class Rounds:
    """One round after the other, between a server and the users at the other end of a link.

    `deadline` is T_max in seconds, or a `fleet.deadlines.Deadline`: a schedule, or `Auto`,
    which is adapted after each round. With a `cohort`, each round asks that many of the free users,
    drawn from `seed`; a function says how many from the number of users who are there. `on_wait` is
    called with a sentence when there is nobody to ask. `now` is the clock.
    """

    def __init__(
        self,
        server: LiveServer,
        link: Link,
        deadline: float | Deadline | None,
        grace: Grace | None = None,
        *,
        cohort: int | Callable[[int], int] | None = None,
        seed: int = 0,
        on_wait: Say | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server, self.link = server, link
        self.t_max = TMax(server, deadline)
        self.grace = grace or Grace()
        self.cohort, self.seed = cohort, seed
        self._on_wait = on_wait or log.warning
        self._now = now
        self._began: dict[int, float] = {}  # when rounds did, lately: for answers that come late
        self._closing: deque[float] = deque(maxlen=20)  # from the last answers to the new model
        self._failures = 0  # rounds in a row in which all who answered had failed
        self._late: list[tuple[Sequence[Answer], float]] = []  # that came between two rounds
        self._not_before = -inf  # when the next round may begin

    def next(self) -> Row:
        """Run one round, from asking to the new model."""
        self._wait_for_somebody()
        users = self._choose()
        deadline, trying = self.t_max.seconds(self.server.t + 1), self.t_max.trying
        self.server.present = self.link.users()
        t = self.server.open(users, None if trying else deadline)
        began = self._began[t] = self._now()
        self._began.pop(t - 100, None)
        self._arrived: dict[str, float] = {}
        grace = self.grace.seconds(deadline)
        limit = inf if deadline is None else deadline + grace
        # The step is part of the round, so answers are taken until it has to be begun; but T_max
        # is the users', whatever a step took.
        until = began + limit - min(self._usual_closing(), grace)
        self.link.send(self.server.task(deadline, not self.t_max.adapts), users)
        asked = set(self.link.awaited())  # not those who are still busy with another round
        while self._late:
            self._take(*self._late.pop(0))
        heard = self._listen(began, until)
        round = self.server.round
        row = replace(self.server.close(), deadline=deadline, arrived=self._arrived)
        self.t_max.learn(row, asked, round.updates)
        closed = self._now()
        self._closing.append(closed - heard)
        self._slow_down_if_all_failed(row, asked, round.failed)
        return replace(row, seconds=closed - began, limit=limit if isfinite(limit) else None)

    def _choose(self) -> Collection[str]:
        present = self.link.users()
        if self.cohort is None:
            return present
        size = self.cohort if isinstance(self.cohort, int) else self.cohort(len(present))
        free = sorted(self.link.free())
        # By round, so that a server that starts again does not begin with the same users again.
        rng = random.Random(f"{self.seed}:{self.server.t + 1}")
        return rng.sample(free, min(size, len(free)))

    def _listen(self, began: float, until: float) -> float:
        """Take answers until time is up or nobody is awaited; return when it last listened."""
        heard = self._now()
        say = began + SAY
        while (missing := self.server.missing() & set(self.link.awaited())) and self._now() < until:
            if until == inf and heard >= say:
                some = ", ".join(map(in_one_line, sorted(missing)[:5])) + (
                    ", ..." if len(missing) > 5 else ""
                )
                self._on_wait(f"waiting for {some} ({heard - began:.0f} s so far).")
                say = heard + (heard - began)  # ever more rarely
            answers = self.link.receive(max(0.0, min(until - self._now(), PAUSE)))
            heard = self._now()
            self._take(answers, heard)
        return heard

    def _usual_closing(self) -> float:
        """What it takes but for a few hiccups: those would cost the rounds after them as well."""
        ordered = sorted(self._closing)
        return ordered[int(0.85 * (len(ordered) - 1))] if ordered else 0.0

    def _slow_down_if_all_failed(self, row: Row, asked: set[str], failed: set[str]) -> None:
        """Rounds that end as soon as all have failed would be used up before anybody is mended.

        They go on all the same, ever more slowly, because it may be this round that all fail in.
        """
        if not asked or asked - failed:
            self._failures = 0
            return
        self._failures += 1
        pause = min(LONGEST, 2.0 ** (self._failures - 1))
        user, reason = map(in_one_line, row.rejected[-1])
        self._not_before = self._now() + pause
        self._on_wait(
            f"all users failed in round {row.round} (the last was {user}: {reason}); "
            f"the next round starts in {pause:g} s."
        )

    def _wait_for_somebody(self) -> None:
        """Keep what comes in the meantime, late for its round."""
        said, began = False, self._now()
        while not self.link.free() or self._now() < self._not_before:
            if not said and not self.link.free() and self._now() - began >= SAY_WAITING:
                present, said = len(self.link.users()), True
                busy = f"all {present} users are busy with earlier rounds"
                self._on_wait(f"{busy if present else 'no users are connected'}; waiting for one.")
            if answers := self.link.receive(PAUSE):
                self._late.append((answers, self._now()))
        if said:
            self._on_wait("a user is ready; continuing.")

    def _take(self, answers: Sequence[Answer], arrived: float) -> None:
        for user, asked, content in answers:
            if isinstance(content, Rejected):
                self.server.refuse(user, content, asked)
                continue
            update = self.server.take(user, content, asked)
            if update is not None and asked in self._began:
                took = arrived - self._began[asked]
                if asked == self.server.t + 1:
                    self._arrived[user] = round(took, 7)
                self.grace.learn(user, took - min(max(update.seconds, 0.0), took))
