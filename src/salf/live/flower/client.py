"""The function that a ClientApp calls: from the message received to the reply."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from salf.common.errors import SalfError
from salf.core.compression import Compression, Sender
from salf.core.layers import Layers
from salf.engines.losses import Loss
from salf.live.batches import OwnBatch
from salf.live.update import Task
from salf.live.user import User
from salf.methods import Method
from salf.problem import Problem
from salf.worlds.fleet.cost import MOST

SERVER_STATE, USER_STATE = "salf-server", "salf-user"  # records with a method's states
# Where in the context's state what was not sent is kept, and the learned times.
RESIDUALS, TIMES = "salf-residuals", "salf-times"

Batch = tuple[Tensor, Tensor]


def train(
    model: nn.Module | Problem,
    batch: Batch | Callable[..., Batch],
    msg: Message,
    context: Context | None = None,
    *,
    loss: Loss = cross_entropy,
    steps: int | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
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
    `batch` is called for each step. With `batch_size`, it is called with the number of rows to use:
    `batch_size`, or with the strategy's `equal_time` the size that suits this node, at most
    `samples`.

    Flower starts a new process for each message. In the context, this node remembers how long its
    layers take and, with topk compression, what it has not sent yet. `method` is needed if it
    changes users' local steps and does not come with salf.
    """
    start = time.perf_counter()
    if isinstance(model, Problem):
        loss, model = model.loss, model.model
    config = _config(msg)
    layers = Layers.of(model, json.loads(cast(str, config["layers"])))
    most = MOST * (batch_size or 0) if samples is None else samples
    own = None if batch_size is None else OwnBatch(batch_size, most)

    def value(round: int, step: int) -> Tensor:
        if callable(batch):
            inputs, targets = batch() if own is None else batch(own.rows)
        else:
            inputs, targets = batch
        return loss(model(inputs), targets).mean()

    user = User("", Problem(model, layers), value, steps=steps, batch=own, method=method)
    if (compression := Compression.parse(cast(str, config.get("compress", "")))) is not None:
        # A node's number is as good as any to make its draws its own.
        user.sender = Sender(compression, layers, 0, msg.metadata.dst_node_id % 2**32)
    return answer(user, msg, context, start)


def answer(
    user: User, msg: Message, context: Context | None, start: float | None = None
) -> Message:
    """The reply of a user, who was asked at `start` (by `time.perf_counter`), or now."""
    start = time.perf_counter() if start is None else start
    config, state = _config(msg), RecordDict() if context is None else context.state
    records = {n: dict(r.to_torch_state_dict()) for n, r in msg.content.array_records.items()}
    server, own = records.pop(SERVER_STATE, {}), records.pop(USER_STATE, None)
    (weights,) = records.values()
    deadline = cast(float | None, config.get("deadline"))
    _recall(user, state, cast(str, config["layers"]))
    task = Task(
        cast(int, config["server-round"]),
        None if deadline is None else deadline - (time.perf_counter() - start),
        weights,
        cast(int, config["local-steps"]),
        cast(float, config["local-rate"]),
        cast(float, config.get("step-seconds", 0.0)),
        cast(str, config.get("method", "")),
        server,
        {} if own is None else {user.name: own},
        {user.name: cast(int, config.get("used", 0))},
    )
    update = user.train(task)
    update = replace(update, seconds=time.perf_counter() - start)
    packed = user.packed(update)
    residuals = {} if user.sender is None else user.sender.residuals
    if context is None and (user.kept.states or residuals):
        what = "the method keeps a state" if user.kept.states else "compress topk keeps the rest"
        raise SalfError(f"{what} on this node: pass the context to train.")
    learned = user.backpropagation.state_dict()
    layers = cast(str, config["layers"])
    state[TIMES] = ConfigRecord({"layers": layers, "rows": update.rows, **learned})
    if user.kept.states:
        kept = {f"{t} {n}": v for t, each in user.kept.states.items() for n, v in each.items()}
        state[USER_STATE] = ArrayRecord(kept)
    if residuals:
        state[RESIDUALS] = ArrayRecord({str(index): rest for index, rest in residuals.items()})
    metrics = MetricRecord({"server-round": task.round, **update.numbers()})
    arrays = ArrayRecord(dict(packed.tensors))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


def _config(msg: Message) -> ConfigRecord:
    """The config of a message that a SALF strategy sent."""
    config = next(iter(msg.content.config_records.values()), ConfigRecord())
    if not {"layers", "server-round", "local-steps", "local-rate"} <= config.keys():
        raise SalfError(
            "salf.flower.train cannot answer this message: the server's strategy must be "
            "salf.flower.SALF."
        )
    return config


def _recall(user: User, state: RecordDict, layers: str) -> None:
    """Go on with what this node kept; not with times that are of other layers, or damaged."""
    if isinstance(known := state.get(USER_STATE), ArrayRecord):
        for key, value in known.to_torch_state_dict().items():
            round, _, name = key.partition(" ")
            user.kept.states.setdefault(int(round), {})[name] = value  # type: ignore[index]
    if user.sender is not None and isinstance(known := state.get(RESIDUALS), ArrayRecord):
        residuals = known.to_torch_state_dict()
        user.sender.residuals = {int(index): rest for index, rest in residuals.items()}
    times = state.get(TIMES)
    if not isinstance(times, ConfigRecord) or times.get("layers") != layers:
        return
    try:
        learned = {key: value for key, value in times.items() if key not in ("layers", "rows")}
        user.backpropagation.load_state_dict(learned)  # type: ignore[arg-type]  # it checks
        if user.batch is not None and isinstance(rows := times.get("rows"), int) and rows > 0:
            user.batch.rows = rows
    except (SalfError, TypeError):
        return
