"""Messages through Flower's grid, whose replies never make the server wait longer than it wants.

`Grid.pull_messages` hands a reply over when all of it is uploaded, and until then it does not come
back: for minutes, if a node stops in the middle. So every message is asked for by itself, in a
thread beside the server. The SuperLink gives a reply away once, to the pull that finds it.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import Empty, Queue
from threading import Thread

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from salf.common.errors import in_one_line
from salf.live.update import Rejected

log = logging.getLogger("salf.live")

POLL = 0.1  # seconds from asking for a reply to asking again, at the least
PACE = 0.03  # seconds from a pull in vain to the next one: each costs the SuperLink 6 ms
MOST_PULLS = 64  # at a time, each a thread; a stalled upload holds one until Flower gives it up


@dataclass(eq=False)
class SentMessage:
    """A message on its way: to whom, of which round, and until when Flower takes a reply."""

    node: int
    round: int
    until: float
    asked: float = -inf  # when its reply was last asked for
    failed: str = ""  # why the pull that asked for it did


class Mail:
    """What was sent through a grid and has no reply yet, and the replies as they come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, SentMessage] = {}
        self._pulling: set[str] = set()  # what is being asked for
        self._ended: Queue[tuple[str, Iterable[Message] | Exception]] = Queue()
        self._next = -inf  # when the next pull may begin

    def send(self, messages: Sequence[Message], round: int) -> None:
        """Send messages of a round; the SuperLink keeps each for its TTL, and then nobody does."""
        taken = set(self._grid.push_messages(messages)) if messages else set()
        for about in (message.metadata for message in messages):
            if about.message_id in taken:
                until = time.monotonic() + about.ttl
                self._sent[about.message_id] = SentMessage(about.dst_node_id, round, until)

    def unanswered(self) -> list[SentMessage]:
        """What may still be replied to."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.until > now}
        return list(self._sent.values())

    def receive(self, seconds: float) -> list[tuple[SentMessage, Message | Rejected]]:
        """The replies that have come; waits at most so long for the first."""
        until = time.monotonic() + seconds
        while True:
            self._pull()
            left = max(0.0, until - time.monotonic())
            replies: list[tuple[SentMessage, Message | Rejected]] = []
            with suppress(Empty):
                replies += self._taken(*self._ended.get(timeout=min(left, PACE)))
                while True:
                    replies += self._taken(*self._ended.get_nowait())
            if replies or not left:
                return replies

    def _pull(self) -> None:
        """Ask for the reply that was asked for longest ago."""
        self.unanswered()
        idle = [key for key in self._sent if key not in self._pulling]
        key = min(idle, key=lambda key: self._sent[key].asked, default=None)
        now = time.monotonic()
        if key is None or now < max(self._next, self._sent[key].asked + POLL):
            return
        if len(self._pulling) < MOST_PULLS:
            self._next, self._sent[key].asked = now + PACE, now
            self._pulling.add(key)
            Thread(target=self._work, args=(key,), daemon=True).start()

    def _work(self, key: str) -> None:
        try:
            self._ended.put((key, list(self._grid.pull_messages([key]))))
        except Exception as error:  # whatever a node's bytes make Flower's decoder raise
            self._ended.put((key, error))

    def _taken(
        self, key: str, came: Iterable[Message] | Exception
    ) -> Iterable[tuple[SentMessage, Message | Rejected]]:
        """A reply with what it replies to. A message has one; what else comes is left."""
        self._pulling.discard(key)
        if (sent := self._sent.get(key)) is None:
            return
        if isinstance(came, Exception):  # its reply may be lost or not: asking again tells
            reason = in_one_line(came)
            if not sent.failed:  # else it would be said ten times a second
                log.warning("could not read a reply: %s", reason)
            sent.failed = reason
            return
        for message in came:
            if message.metadata.reply_to_message_id == key:
                del self._sent[key]
                self._next = -inf
                code = message.error.code if message.has_error() else None
                lost = code == ErrorCode.MESSAGE_UNAVAILABLE and sent.failed
                yield sent, Rejected(f"not a reply: {sent.failed}") if lost else message
                return
