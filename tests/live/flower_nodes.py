"""A Flower grid in memory, whose nodes do what a test tells them to."""

import threading
import time
from itertools import count

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from salf.live.update import Update, encode

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a ServerApp's process

HANGS = object()  # what a node returns that never replies


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def travelled(message):
    """The message as it is after it went through Flower's own encoding, as over the network."""
    contents = {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


def context():
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def gradients(depth, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layers = [("0.weight", "0.bias"), ("2.weight", "2.bias"), ("4.weight", "4.bias")]
    shapes = {name: parameter.shape for name, parameter in network().named_parameters()}
    return {
        name: torch.randn(shapes[name], generator=generator)
        for names in layers[depth - 1 :]
        for name in names
    }


def reply(message, depth=1, seed=0):
    """What an honest node sends."""
    data = encode(Update(depth, gradients(depth, seed), loss=1.0, seconds=0.01))
    return carrying(message, data)


def carrying(message, data):
    """A reply with these bytes in the place of an update."""
    array = Array("uint8", (len(data),), "safetensors", data)
    return Message(RecordDict({"arrays": ArrayRecord({"update": array})}), reply_to=message)


def sends(depth=1, seed=0):
    return lambda message: reply(message, depth, seed)


class FakeGrid(Grid):
    """Nodes are functions from the message they get to their reply, to HANGS, to an exception
    that reading the reply raises, or to a function that downloads the reply, one after the other.
    With `after`, seconds until a node's reply is there.

    As the SuperLink does, it gives a reply away once, to the pull that finds it, and whoever asks
    again is told that there is no such message.
    """

    def __init__(self, nodes, after=None):
        self.nodes = dict(nodes)
        self.after = after or {}
        self.pushed = []
        self.most_pulls = 0  # that were at work at the same time
        self.pulls = self._at_work = 0
        self._open = {}  # by message id: until when it may be replied to
        self._waiting = {}  # by message id: when there is a reply, and which
        self._ids = count()
        self._lock = threading.Lock()

    set_run = run = create_message = None  # not used

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the stock exchange cannot keep a deadline")

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        keys = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = f"message-{next(self._ids)}"
            self.pushed.append(message)
            keys.append(key)
            node = message.metadata.dst_node_id
            answer = self.nodes[node](travelled(message))
            now = time.monotonic()
            with self._lock:
                self._open[key] = now + message.metadata.ttl
                if answer is not HANGS:
                    self._waiting[key] = now + self.after.get(node, 0.0), answer
        return keys

    def pull_messages(self, message_ids):
        with self._lock:
            self.pulls += 1
            self._at_work += 1
            self.most_pulls = max(self.most_pulls, self._at_work)
        try:
            return self._pulled(list(message_ids))
        finally:
            with self._lock:
                self._at_work -= 1

    def _pulled(self, keys):
        now = time.monotonic()
        with self._lock:
            gone = [key for key in keys if self._open.get(key, now) <= now]
            there = [key for key in keys if self._waiting.get(key, (now + 1,))[0] <= now]
            answers = [self._waiting.pop(key)[1] for key in there if key not in gone]
            for key in {*gone, *there}:
                self._open.pop(key, None)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [
            *(create_message_error_unavailable_ins_message(key, 1) for key in gone),
            *(answer() if callable(answer) else travelled(answer) for answer in answers),
        ]

    def asked(self, node):
        """The rounds this node was asked in."""
        return [
            message.content["config"]["server-round"]
            for message in self.pushed
            if message.metadata.dst_node_id == node
        ]
