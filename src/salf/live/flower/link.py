"""The nodes of a Flower federation, as `Rounds` reaches them. What they send is not trusted."""

from collections.abc import Callable, Collection, Mapping, Sequence
from io import BytesIO
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, Message
from flwr.serverapp import Grid
from numpy.lib import format as npy
from torch import Tensor

from salf.common.errors import in_one_line
from salf.live.flower.mail import Mail, SentMessage
from salf.live.rounds import Answer
from salf.live.task import Task
from salf.live.update import Rejected, Update, whole_of

Record = TypeVar("Record")

# Who takes part in a round, of the nodes that are there and those of them that are free.
Choose = Callable[[Sequence[int], Sequence[int]], Sequence[int]]


class GridLink:
    """The nodes behind a grid; a user is called by its node's number.

    A node is asked again when it has answered, or when the TTL of what it was asked is over: so
    it has one message at a time, and never works through rounds that are long closed.
    """

    def __init__(
        self,
        grid: Grid,
        ask: Callable[[Task, Sequence[int]], Sequence[Message]],
        choose: Choose,
        most_bytes: int,
    ) -> None:
        self._grid = grid
        self._mail = Mail(grid)
        self._ask = ask
        self._choose = choose
        self._most_bytes = most_bytes
        self._round = 0

    def users(self) -> set[str]:
        """Who takes part in the next round, of those the SuperLink hears from."""
        present = sorted(self._grid.get_node_ids())
        return {str(node) for node in self._choose(present, self._idle(present))}

    def free(self) -> set[str]:
        """Nodes without a message that they may still reply to."""
        return {str(node) for node in self._idle(list(self._grid.get_node_ids()))}

    def send(self, task: Task, users: Collection[str]) -> None:
        """One message to each of them who is free."""
        self._round = task.round
        self._mail.send(self._ask(task, self._idle(sorted(map(int, users)))), task.round)

    def awaited(self) -> set[str]:
        """Nodes whose reply of this round may still come."""
        return {str(sent.node) for sent in self._mail.unanswered() if sent.round == self._round}

    def receive(self, seconds: float) -> Sequence[Answer]:
        """Replies of this round and of those before, as updates or as the reason why not."""
        return [self._answer(sent, reply) for sent, reply in self._mail.receive(seconds)]

    def _idle(self, nodes: Sequence[int]) -> list[int]:
        busy = {sent.node for sent in self._mail.unanswered()}
        return [node for node in nodes if node not in busy]

    def _answer(self, sent: SentMessage, reply: Message | Rejected) -> Answer:
        user = str(sent.node)
        if isinstance(reply, Rejected):
            return Answer(user, sent.round, reply)
        try:
            update = update_of(user, sent.round, reply, self._most_bytes)
            return Answer(user, sent.round, update)
        except Rejected as reason:
            return Answer(user, sent.round, reason)


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
