"""Messages through Flower's grid, whose replies never make the server wait longer than it wants.

`Grid.pull_messages` hands a reply over when all of it is uploaded, and until then it does not come
back: for minutes, if a node stops in the middle. So it is called in threads beside the server.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

from salf.live.update import Rejected

log = logging.getLogger("salf.live")

POLL = 0.1  # seconds from one pull to the next
PATIENCE = 2.0  # seconds a pull may take before another one is begun beside it


@dataclass(frozen=True)
class Sent:
    """A message on its way: to whom, of which round, and until when Flower takes a reply."""

    node: int
    round: int
    until: float


class Mail:
    """What was sent through a grid and has no reply yet, and the replies as they come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, Sent] = {}
        self._pulled: Queue[tuple[list[str], Iterable[Message] | Exception]] = Queue()
        self._puller: Thread | None = None
        self._began = 0.0  # when the last pull did
        self._one_by_one = False

    def send(self, messages: Sequence[Message], round: int) -> None:
        """Send messages of a round; the SuperLink keeps each for its TTL, and then nobody does."""
        taken = set(self._grid.push_messages(messages)) if messages else set()
        for message in messages:
            about = message.metadata
            if about.message_id in taken:
                self._sent[about.message_id] = Sent(
                    about.dst_node_id, round, time.monotonic() + about.ttl
                )

    def unanswered(self) -> list[Sent]:
        """What may still be replied to."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.until > now}
        return list(self._sent.values())

    def receive(self, seconds: float) -> list[tuple[Sent, Message | Rejected]]:
        """The replies that have come; waits at most so long for the first."""
        until = time.monotonic() + seconds
        while True:
            self._pull()
            left = max(0.0, until - time.monotonic())
            try:
                pulled = [self._pulled.get(timeout=min(left, POLL))]
            except Empty:
                pulled = []
            while not self._pulled.empty():
                pulled.append(self._pulled.get())
            replies = [reply for keys, came in pulled for reply in self._matched(keys, came)]
            if replies or not left:
                return replies

    def _pull(self) -> None:
        now = time.monotonic()
        at_work = self._puller is not None and self._puller.is_alive()
        if self.unanswered() and now - self._began >= (PATIENCE if at_work else POLL):
            self._began = now
            self._puller = Thread(target=self._ask_for, args=(list(self._sent),), daemon=True)
            self._puller.start()

    def _ask_for(self, keys: list[str]) -> None:
        for some in [[key] for key in keys] if self._one_by_one else [keys]:
            try:
                self._pulled.put((some, self._grid.pull_messages(some)))
            except Exception as error:  # whatever a node's bytes make Flower's decoder raise
                self._pulled.put((some, error))

    def _matched(
        self, keys: list[str], came: Iterable[Message] | Exception
    ) -> Iterable[tuple[Sent, Message | Rejected]]:
        """Replies with what they reply to. A message has one; what else comes is left."""
        if isinstance(came, Exception):
            reason = _first_line(came)
            if len(keys) == 1 and keys[0] in self._sent:
                yield self._sent.pop(keys[0]), Rejected(f"not a reply: {reason}")
            elif len(keys) > 1:  # whose reply it was, nobody says; with the next one, it is known
                log.warning("a reply could not be read: %s", reason)
                self._one_by_one = True
            return
        for message in came:
            sent = self._sent.pop(message.metadata.reply_to_message_id, None)
            if sent is not None:
                yield sent, message


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
