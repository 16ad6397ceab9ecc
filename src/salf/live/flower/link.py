"""The nodes of a Flower federation, as `Rounds` reaches them. What they send is not trusted."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.lib import format as npy
from torch import Tensor

from salf.common.errors import in_one_line
from salf.core.layers import Layers
from salf.live.flower.client import SERVER_STATE, USER_STATE
from salf.live.flower.mail import Mail, SentMessage
from salf.live.rounds import Answer, Grace
from salf.live.update import Rejected, Task, Update, size_of, whole_of

Record = TypeVar("Record")

# A message waits until its node looks for one (every 3 s), then starts a process, which imports
# torch: several seconds in all, and nobody knows how many before the first answers.
FIRST_GRACE = 30.0
MOST_GRACE = 60.0


def grace_of(seconds: float | None) -> Grace:
    """The grace period, if it is not to be learned, for Flower's messages."""
    return Grace(seconds, first=FIRST_GRACE, most=max(MOST_GRACE, seconds or 0.0))


@dataclass
class Question:
    """The task of a round as Flower's messages to nodes.

    A message lives as long as a reply can be of use, if only to learn the grace period from it. A
    node that is dead or hangs is asked again after that.
    """

    layers: Layers
    grace: Grace
    compress: str = ""
    config: ConfigRecord = field(default_factory=ConfigRecord)  # more, for the ClientApp
    timeout: float = 3600.0  # of rounds without a deadline

    def to(self, task: Task, nodes: Mapping[int, str]) -> Sequence[Message]:
        """A message to every node, of which the user's name is given."""
        names = [[*layer.parameters, *layer.buffers] for layer in self.layers]
        asked: dict[str, Any] = {
            "server-round": task.round,
            "layers": json.dumps(names),
            "local-steps": task.steps,
            "local-rate": task.rate,
            "step-seconds": task.step_seconds,
            "method": task.method,
            "compress": self.compress,
        }
        if task.deadline is not None:
            asked["deadline"] = task.deadline
        common = {"arrays": ArrayRecord(dict(task.weights))}
        if task.server:
            common[SERVER_STATE] = ArrayRecord(dict(task.server))

        def content(user: str) -> RecordDict:
            own = ConfigRecord({**self.config, **asked, "used": task.used.get(user, 0)})
            found = RecordDict({**common, "config": own})
            if user in task.users:
                found[USER_STATE] = ArrayRecord(dict(task.users[user]))
            return found

        ttl = self.timeout if task.deadline is None else task.deadline + self.grace.most
        return [
            Message(content(user), node, MessageType.TRAIN, ttl=ttl, group_id=str(task.round))
            for node, user in nodes.items()
        ]


class GridLink:
    """The nodes behind a grid; a user is called by its node's number, or by its name.

    A node is asked again when it has answered, or when the TTL of what it was asked is over: so
    it has one message at a time, and never works through rounds that are long closed.
    """

    def __init__(
        self, grid: Grid, question: Question, names: Mapping[str, str] | None = None
    ) -> None:
        self._grid, self._mail, self._question = grid, Mail(grid), question
        self._names = dict(names or {})
        self._nodes = {name: int(node) for node, name in self._names.items()}
        self._round = self._most_bytes = 0

    def users(self) -> set[str]:
        return {self._name(node) for node in self._grid.get_node_ids()}

    def free(self) -> set[str]:
        return {self._name(node) for node in self._idle(self._grid.get_node_ids())}

    def send(self, task: Task, users: Collection[str]) -> None:
        """One message to each of them who is free."""
        self._round, self._most_bytes = task.round, size_of(task.weights)
        nodes = sorted(self._nodes[user] if user in self._nodes else int(user) for user in users)
        asked = {node: self._name(node) for node in self._idle(nodes)}
        self._mail.send(self._question.to(task, asked), task.round)

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
        user, content = self._name(sent.node), cast(Update | Rejected, reply)
        if isinstance(reply, Message):
            try:
                content = update_of(user, sent.round, reply, self._most_bytes)
            except Rejected as reason:
                content = reason
        return Answer(user, sent.round, content)


def update_of(user: str, round: int, reply: Message, most_bytes: int) -> Update:
    """A node's reply as an update. Whatever it is, it is an Update or `Rejected`.

    Who sent it, and which round's message it replies to, Flower says and not the node.
    """
    if reply.has_error():
        reason = " ".join(str(reply.error.reason or f"error {reply.error.code}").split())
        raise Rejected(f"failed: {in_one_line(reason)}")
    arrays = _only(reply.content.array_records, "ArrayRecord")
    metrics = _only(reply.content.metric_records, "MetricRecord")
    size = sum(len(array.data) + len(name) for name, array in arrays.items())
    if size > most_bytes:
        raise Rejected(f"too large: {size} bytes, the limit is {most_bytes}")
    if "server-round" not in metrics:
        raise Rejected("not made by salf.flower.train; call it in the ClientApp")
    if (said := whole_of(metrics, "server-round")) != round:
        raise Rejected(f"it is for round {said}, in reply to round {round}")
    tensors = {name: _tensor(name, array) for name, array in arrays.items()}
    return Update.of(user, round, tensors, metrics)


def _only(records: Mapping[str, Record], kind: str) -> Record:
    if len(records) != 1:
        raise Rejected(f"it has {len(records)} {kind}s, expected one")
    return next(iter(records.values()))


def _tensor(name: str, array: Array) -> Tensor:
    """The tensor in npy bytes: just numbers, and as many as its header promises.

    `np.load` would make room for what the header promises before it looks what is there.
    """
    try:
        stream = BytesIO(array.data)
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("a different version of the format")
        shape, by_columns, dtype = npy.read_array_header_1_0(stream)
        numbers = np.frombuffer(array.data[stream.tell() :], dtype)
        return torch.from_numpy(numbers.reshape(shape, order="F" if by_columns else "C").copy())
    except Exception as error:  # whatever bytes make NumPy's parser raise
        raise Rejected(f"{name[:200]!r} is not an array: {in_one_line(error)}") from None
