"""Messages through Flower's grid, whose replies never make the server wait longer than it wants.

`Grid.pull_messages` hands a reply over when all of it is uploaded, and until then it does not come
back: for minutes, if a node stops in the middle. So every message is asked for by itself, in a
thread beside the server. The SuperLink gives a reply away once, to the pull that finds it.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Semaphore, Thread

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from salf.common.errors import in_one_line
from salf.live.update import Rejected

POLL = 0.1  # seconds from asking for a reply to asking again, at the least
PACE = 0.03  # seconds from one pull to the next, on average: each costs the SuperLink 6 ms
MOST_PULLS = 64  # at a time; a stalled upload holds one until Flower gives it up


@dataclass(frozen=True)
class SentMessage:
    """A message on its way: to whom, of which round, and until when Flower takes a reply."""

    node: int
    round: int
    until: float


class Mail:
    """What was sent through a grid and has no reply yet, and the replies as they come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, SentMessage] = {}
        self._came: Queue[tuple[str, Message | Rejected]] = Queue()
        self._pulls = Semaphore(MOST_PULLS)

    def send(self, messages: Sequence[Message], round: int) -> None:
        """Send messages of a round; the SuperLink keeps each for its TTL, and then nobody does."""
        taken = set(self._grid.push_messages(messages)) if messages else set()
        for about in (message.metadata for message in messages):
            if (key := about.message_id) in taken:
                sent = SentMessage(about.dst_node_id, round, time.monotonic() + about.ttl)
                self._sent[key] = sent
                Thread(target=self._ask, args=(key, sent.until), daemon=True).start()

    def unanswered(self) -> list[SentMessage]:
        """What may still be replied to."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.until > now}
        return list(self._sent.values())

    def receive(self, seconds: float) -> list[tuple[SentMessage, Message | Rejected]]:
        """The replies that have come; waits at most so long for the first."""
        came: list[tuple[str, Message | Rejected]] = []
        with suppress(Empty):
            came.append(self._came.get(timeout=seconds))
            while True:
                came.append(self._came.get_nowait())
        return [(self._sent.pop(key), reply) for key, reply in came if key in self._sent]

    def _ask(self, key: str, until: float) -> None:
        """Ask for the reply to a message until it is there. What else comes is left."""
        failed = ""
        while time.monotonic() < until:
            time.sleep(max(POLL, PACE * len(self._sent)))
            try:
                with self._pulls:
                    came = list(self._grid.pull_messages([key]))
            except Exception as error:  # whatever a node's bytes make Flower's decoder raise
                failed = in_one_line(error)  # the reply may be lost or not: asking again tells
                continue
            for message in came:
                if message.metadata.reply_to_message_id == key:
                    code = message.error.code if message.has_error() else None
                    lost = code == ErrorCode.MESSAGE_UNAVAILABLE and failed
                    reply = Rejected(f"not a reply: {failed}") if lost else message
                    self._came.put((key, reply))
                    return
