"""Messages through Flower's grid, whose replies never make the server wait longer than it wants.

`Grid.pull_messages` hands a reply over when all of it is uploaded, and until then it does not come
back: for minutes, if a node stops in the middle. So it is called in threads beside the server.

The SuperLink gives a reply away once, to the pull that finds it. Whoever asks again, even while
that pull is still downloading, is told that there is no such message. So what a pull is at work on
is not asked for, and where that is not certain, such an answer does not count.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from queue import Empty, Queue
from threading import Thread

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from salf.common.errors import in_one_line
from salf.live.update import Rejected

log = logging.getLogger("salf.live")

POLL = 0.1  # seconds from asking for a reply to asking again, at the least
PACE = 0.04  # seconds from pull to pull, on average: the SuperLink works 6 ms on an empty one
GROUPS = 10  # up to so many replies have a pull each; more share them, as one costs what 100 do
PATIENCE = 2.0  # seconds after which those who share a pull are no longer taken to be in it
MOST_PULLS = 64  # at a time, each a thread; a stalled upload holds one until Flower gives it up


@dataclass(eq=False)
class SentMessage:
    """A message on its way: to whom, of which round, and until when Flower takes a reply."""

    node: int
    round: int
    until: float
    asked: float = -inf  # when its reply was last asked for
    failed: str = ""  # why the pull that asked for it did


@dataclass(eq=False)
class Pull:
    """A call of `Grid.pull_messages` at work, and what nobody else asks for meanwhile."""

    keys: Sequence[str]
    began: float
    claimed: set[str]
    doubted: bool = False


class Mail:
    """What was sent through a grid and has no reply yet, and the replies as they come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, SentMessage] = {}
        self._pulls: list[Pull] = []
        self._ended: Queue[tuple[Pull, Iterable[Message] | Exception]] = Queue()
        self._alone: set[int] = set()  # nodes that share no pull, as theirs stalled or failed

    def send(self, messages: Sequence[Message], round: int) -> None:
        """Send messages of a round; the SuperLink keeps each for its TTL, and then nobody does."""
        taken = set(self._grid.push_messages(messages)) if messages else set()
        for message in messages:
            about = message.metadata
            if about.message_id in taken:
                self._sent[about.message_id] = SentMessage(
                    about.dst_node_id, round, time.monotonic() + about.ttl
                )

    def unanswered(self) -> list[SentMessage]:
        """What may still be replied to."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.until > now}
        return list(self._sent.values())

    def receive(self, seconds: float) -> list[tuple[SentMessage, Message | Rejected]]:
        """The replies that have come; waits at most so long for the first."""
        until = time.monotonic() + seconds
        while True:
            self._doubt_stalled()
            self._pull()
            left = max(0.0, until - time.monotonic())
            replies: list[tuple[SentMessage, Message | Rejected]] = []
            with suppress(Empty):
                replies += self._taken(*self._ended.get(timeout=min(left, PACE)))
                while True:
                    replies += self._taken(*self._ended.get_nowait())
            if replies or not left:
                return replies

    def _doubt_stalled(self) -> None:
        """Ask those who share a stalled pull one by one: most of them will not be in it."""
        now = time.monotonic()
        for pull in self._pulls:
            if len(pull.keys) > 1 and not pull.doubted and now - pull.began > PATIENCE:
                pull.doubted = True
                pull.claimed.clear()
                self._set_apart(pull)

    def _pull(self) -> None:
        self.unanswered()
        now = time.monotonic()
        for keys in self._groups(now)[: MOST_PULLS - len(self._pulls)]:
            pull = Pull(keys, now, set(keys))
            self._pulls.append(pull)
            for key in keys:
                self._sent[key].asked = now
            Thread(target=self._work, args=(pull,), daemon=True).start()

    def _groups(self, now: float) -> list[list[str]]:
        """What to ask for now, in as many pulls; those who were asked for longest ago first."""
        pulls = min(len(self._sent), GROUPS + len(self._alone))
        since = now - max(POLL, PACE * pulls)
        claimed = {key for pull in self._pulls for key in pull.claimed}
        asked = {key: sent.asked for key, sent in self._sent.items() if key not in claimed}
        due = sorted((key for key, at in asked.items() if at <= since), key=asked.__getitem__)
        together = [key for key in due if self._sent[key].node not in self._alone]
        apart = [[key] for key in due if self._sent[key].node in self._alone]
        size = max(1, ceil(len(self._sent) / GROUPS))
        return [*(together[n : n + size] for n in range(0, len(together), size)), *apart]

    def _work(self, pull: Pull) -> None:
        try:
            self._ended.put((pull, list(self._grid.pull_messages(pull.keys))))
        except Exception as error:  # whatever a node's bytes make Flower's decoder raise
            self._ended.put((pull, error))

    def _taken(
        self, pull: Pull, came: Iterable[Message] | Exception
    ) -> Iterable[tuple[SentMessage, Message | Rejected]]:
        """Replies with what they reply to. A message has one; what else comes is left."""
        self._pulls.remove(pull)
        if isinstance(came, Exception):
            self._note_failure(pull, came)
            return
        for message in came:
            key = message.metadata.reply_to_message_id
            if key not in self._sent:
                continue
            code = message.error.code if message.has_error() else None
            unavailable = code == ErrorCode.MESSAGE_UNAVAILABLE
            if unavailable and self._is_in_another(key):
                continue
            if len(pull.keys) == 1 and not unavailable:
                self._alone.discard(self._sent[key].node)
            sent = self._sent.pop(key)
            lost = unavailable and sent.failed
            yield sent, Rejected(f"not a reply: {sent.failed}") if lost else message

    def _note_failure(self, pull: Pull, error: Exception) -> None:
        """A pull that fails may have lost its replies or not: it is known when asked again."""
        reason = in_one_line(error)
        known = [self._sent[key] for key in pull.keys if key in self._sent]
        if not all(sent.failed for sent in known):  # else it would be said ten times a second
            log.warning("could not read a reply: %s", reason)
        for sent in known:
            sent.failed = reason
        self._set_apart(pull)

    def _is_in_another(self, key: str) -> bool:
        """Whether another pull has that reply; then it is left to it."""
        others = [pull for pull in self._pulls if key in pull.keys]
        for pull in others:
            pull.claimed.add(key)
        return bool(others)

    def _set_apart(self, pull: Pull) -> None:
        if len(pull.keys) > 1:
            self._alone.update(self._sent[key].node for key in pull.keys if key in self._sent)
