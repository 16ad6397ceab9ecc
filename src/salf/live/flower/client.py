"""The function that a ClientApp calls: from the message received to the reply."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from salf.common.errors import SalfError
from salf.core.compression import Compression, Sender
from salf.core.layers import Layers
from salf.engines.losses import Loss
from salf.live.update import Task, encode
from salf.live.user import User
from salf.methods import Method
from salf.problem import Problem

# Records of messages: the model or an update, the config, and a method's states. An update is one
# array of bytes, the same as on Ray, so the server has one decoder for what it does not trust.
ARRAYS, CONFIG, SERVER_STATE, USER_STATE = "arrays", "config", "salf-server", "salf-user"
UPDATE = "update"  # the name of that array
# Records of the context: what was not sent, and the learned times.
RESIDUALS, TIMES = "salf-residuals", "salf-times"

Batch = tuple[Tensor, Tensor]


def train(
    model: nn.Module | Problem,
    batch: Batch | Callable[[], Batch],
    msg: Message,
    context: Context | None = None,
    *,
    loss: Loss = cross_entropy,
    steps: int | None = None,
    method: Method | None = None,
) -> Message:
    """Backpropagate as far as the round's deadline allows, and reply with the layers reached.

        @app.train()
        def train(msg, context):
            return salf.flower.train(model, (inputs, targets), msg, context)

    The deadline counts from this call. It includes loading the server's model, drawing the batch if
    `batch` is a function, the forward pass and the backward pass. `loss(outputs, targets)` is the
    mean over the batch; a `salf.Problem` in place of the model has its own. `steps` is the number
    of local steps, by default the strategy's `local_steps`; as many are run as fit. A function
    `batch` is called for each step.

    Flower starts a new process for each message. In the context, this node remembers how long its
    layers take and, with topk compression, what it has not sent yet. `method` is needed if it
    changes users' local steps and does not come with salf.
    """
    start = time.perf_counter()
    if isinstance(model, Problem):
        loss, model = model.loss, model.model
    config = _config(msg)
    layers = Layers.of(model, json.loads(str(config["layers"])))

    def value(round: int, step: int) -> Tensor:
        inputs, targets = batch() if callable(batch) else batch
        return loss(model(inputs), targets).mean()

    user = User("", Problem(model, layers), value, steps=steps, method=method)
    if (compression := Compression.parse(str(config["compress"]))) is not None:
        # A node's number is as good as any to make its draws its own.
        user.sender = Sender(compression, layers, 0, msg.metadata.dst_node_id % 2**32)
    return answer(user, msg, context, start)


def answer(
    user: User, msg: Message, context: Context | None, start: float | None = None
) -> Message:
    """The reply of a user, who was asked at `start` (by `time.perf_counter`), or now."""
    start = time.perf_counter() if start is None else start
    asked: dict[str, Any] = json.loads(str(_config(msg)["task"]))
    records = {n: dict(r.to_torch_state_dict()) for n, r in msg.content.array_records.items()}
    users = {user.name: records[USER_STATE]} if USER_STATE in records else {}
    used = {user.name: asked.pop("used")}
    server = records.get(SERVER_STATE, {})
    task = Task(weights=records[ARRAYS], server=server, users=users, used=used, **asked)
    state = RecordDict() if context is None else context.state
    _recall(user, state)
    update = user.train(task, start)
    residuals = {} if user.sender is None else user.sender.residuals
    if context is None and (user.kept.states or residuals):
        what = "the method keeps a state" if user.kept.states else "compress topk keeps the rest"
        raise SalfError(f"{what} on this node: pass the context to train.")
    state[TIMES] = ConfigRecord({"rows": update.rows, **user.backpropagation.state_dict()})
    if user.kept.states:
        kept = {f"{t} {n}": v for t, each in user.kept.states.items() for n, v in each.items()}
        state[USER_STATE] = ArrayRecord(kept)
    if residuals:
        state[RESIDUALS] = ArrayRecord({str(index): rest for index, rest in residuals.items()})
    data = encode(update)
    array = Array("uint8", (len(data),), "safetensors", data)
    return Message(RecordDict({ARRAYS: ArrayRecord({UPDATE: array})}), reply_to=msg)


def _config(msg: Message) -> ConfigRecord:
    """The config of a message that a SALF strategy sent."""
    config = msg.content.config_records.get(CONFIG, ConfigRecord())
    if "task" not in config:
        raise SalfError(
            "salf.flower.train cannot answer this message: the server's strategy must be "
            "salf.flower.SALF."
        )
    return config


def _recall(user: User, state: RecordDict) -> None:
    """Continue with what this node kept."""
    for key, value in _tensors(state, USER_STATE).items():
        round, _, name = key.partition(" ")
        user.kept.states.setdefault(int(round), {})[name] = value  # type: ignore[index]
    if user.sender is not None:
        residuals = _tensors(state, RESIDUALS)
        user.sender.residuals = {int(index): rest for index, rest in residuals.items()}
    learned: dict[str, Any] = dict(state.config_records.get(TIMES, {}))
    rows = learned.pop("rows", 0)
    with suppress(SalfError):  # the times are those of other layers
        user.backpropagation.load_state_dict(learned)
        if user.batch is not None and rows:
            user.batch.rows = rows


def _tensors(state: RecordDict, name: str) -> dict[str, Tensor]:
    record = state.array_records.get(name)
    return {} if record is None else dict(record.to_torch_state_dict())
