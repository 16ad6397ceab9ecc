"""The nodes of a Flower federation, as `Rounds` reaches them. What they send is not trusted."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from salf.common.errors import in_one_line
from salf.core.layers import Layers
from salf.live.flower.client import ARRAYS, CONFIG, SERVER_STATE, UPDATE, USER_STATE
from salf.live.flower.mail import Mail, SentMessage
from salf.live.rounds import Answer, Grace
from salf.live.update import Rejected, Task

# A message waits until its node looks for one (every 3 s), then starts a process, which imports
# torch: several seconds in all, and nobody knows how many before the first answers.
FIRST_GRACE = 30.0
MOST_GRACE = 60.0


def grace_of(seconds: float | None, tolerate: int) -> Grace:
    """The grace period for Flower's messages; `seconds` if it is not to be learned."""
    most = max(MOST_GRACE, seconds or 0.0)
    return Grace(seconds, first=FIRST_GRACE, most=most, tolerate=tolerate)


class GridLink:
    """The nodes behind a grid; a user is called by its node's number, or by its name.

    A node is asked again when it has answered, or when the TTL of what it was asked is over: so
    it has one message at a time, and never works through rounds that are long closed. A message
    lives as long as a reply can be of use, if only to learn the grace period from it; without a
    deadline, for `timeout` seconds. `config` is more for the ClientApp.
    """

    def __init__(
        self,
        grid: Grid,
        layers: Layers,
        grace: Grace,
        *,
        compress: str = "",
        config: ConfigRecord | None = None,
        timeout: float = 3600.0,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._grid, self._mail, self._grace, self._timeout = grid, Mail(grid), grace, timeout
        of_layers = json.dumps([[*layer.parameters, *layer.buffers] for layer in layers])
        self._config = {**(config or {}), "layers": of_layers, "compress": compress}
        self._names = dict(names or {})
        self._nodes = {name: int(node) for node, name in self._names.items()}
        self._round = 0

    def users(self) -> set[str]:
        return {self._name(node) for node in self._grid.get_node_ids()}

    def free(self) -> set[str]:
        return {self._name(node) for node in self._idle(self._grid.get_node_ids())}

    def send(self, task: Task, users: Collection[str]) -> None:
        """One message to each of them who is free."""
        self._round = task.round
        common = {ARRAYS: ArrayRecord(dict(task.weights))}
        if task.server:
            common[SERVER_STATE] = ArrayRecord(dict(task.server))
        names = ("round", "deadline", "steps", "rate", "step_seconds", "method")
        plain = {name: getattr(task, name) for name in names}
        ttl = self._timeout if task.deadline is None else task.deadline + self._grace.most

        def message(node: int) -> Message:
            user = self._name(node)
            asked = json.dumps({**plain, "used": task.used.get(user, 0)})
            config = ConfigRecord({**self._config, "server-round": task.round, "task": asked})
            own = {USER_STATE: ArrayRecord(dict(task.users[user]))} if user in task.users else {}
            content = RecordDict({**common, **own, CONFIG: config})
            return Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(task.round))

        nodes = sorted(self._nodes[user] if user in self._nodes else int(user) for user in users)
        self._mail.send([message(node) for node in self._idle(nodes)], task.round)

    def awaited(self) -> set[str]:
        waiting = self._mail.unanswered()
        return {self._name(sent.node) for sent in waiting if sent.round == self._round}

    def receive(self, seconds: float) -> Sequence[Answer]:
        return [self._answer(sent, reply) for sent, reply in self._mail.receive(seconds)]

    def _name(self, node: int) -> str:
        return self._names.get(str(node), str(node))

    def _idle(self, nodes: Iterable[int]) -> list[int]:
        busy = {sent.node for sent in self._mail.unanswered()}
        return [node for node in nodes if node not in busy]

    def _answer(self, sent: SentMessage, reply: Message | Rejected) -> Answer:
        return Answer(self._name(sent.node), sent.round, _content(reply))


def _content(reply: Message | Rejected) -> bytes | Rejected:
    if isinstance(reply, Rejected):
        return reply
    if reply.has_error():
        reason = str(reply.error.reason or f"error {reply.error.code}")
        return Rejected(f"failed: {in_one_line(' '.join(reason.split()))}")
    arrays: Mapping[str, Array] = reply.content.array_records.get(ARRAYS, {})
    if UPDATE not in arrays:
        return Rejected("not made by salf.flower.train; call it in the ClientApp")
    return arrays[UPDATE].data
