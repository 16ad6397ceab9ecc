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
from salf.live.task import Task
from salf.live.user import User
from salf.methods import Method
from salf.problem import Problem
from salf.worlds.fleet.cost import MOST

RESIDUALS = "salf-residuals"  # where in the context's state what was not sent is kept
SERVER_STATE, USER_STATE = "salf-server", "salf-user"  # records with a method's states
TIMES = "salf-times"  # where in the context's state the learned times are kept

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
    seed: int = 0,
    number: int | None = None,
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
    layers take and, with topk compression, what it has not sent yet. `seed` and `number` key the
    random rounding of QSGD. `method` is needed if it changes users' local steps and does not come
    with salf.
    """
    start = time.perf_counter()
    if isinstance(model, Problem):
        loss, model = model.loss, model.model
    config, weights, states = _read(msg)
    named, round = cast(str, config["layers"]), cast(int, config["server-round"])
    deadline = cast(float | None, config.get("deadline"))
    layers = Layers.of(model, json.loads(named))

    most = MOST * (batch_size or 0) if samples is None else samples
    own = None if batch_size is None else OwnBatch(batch_size, most)

    def value(round: int, step: int) -> Tensor:
        if callable(batch):
            inputs, targets = batch() if own is None else batch(own.rows)
        else:
            inputs, targets = batch
        return loss(model(inputs), targets).mean()

    user = User("", Problem(model, layers), value, steps=steps, batch=own, method=method)
    user.sender = _sender(cast(str, config.get("compress", "")), layers, seed, number, msg, context)
    _recall(user, context, named)
    left = None if deadline is None else deadline - (time.perf_counter() - start)
    task = Task(
        round,
        left,
        weights,
        cast(int, config["local-steps"]),
        cast(float, config["local-rate"]),
        cast(float, config.get("step-seconds", 0.0)),
        cast(str, config.get("method", "")),
        states.get(SERVER_STATE, {}),
        {user.name: states[USER_STATE]} if USER_STATE in states else {},
        {user.name: cast(int, config.get("used", 0))},
    )
    _recall_states(user, context)
    update = user.train(task)
    if context is not None:
        learned = user.backpropagation.state_dict()
        context.state[TIMES] = ConfigRecord({"layers": named, "rows": update.rows, **learned})
        if user.kept.states:
            context.state[USER_STATE] = ArrayRecord(
                {f"{r} {n}": v for r, own in user.kept.states.items() for n, v in own.items()}
            )
    elif user.kept.states:
        raise SalfError("the method keeps a state on this node: pass the context to train.")
    update = replace(update, seconds=time.perf_counter() - start)
    metrics = MetricRecord({"server-round": round, **update.numbers()})
    arrays = ArrayRecord(dict(user.packed(update).tensors))
    if user.sender is not None and user.sender.residuals and context is not None:
        kept = {str(index): residual for index, residual in user.sender.residuals.items()}
        context.state[RESIDUALS] = ArrayRecord(kept)
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


def _read(msg: Message) -> tuple[ConfigRecord, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """The config, the model, and the method's states by the names of their records."""
    try:
        (config,) = msg.content.config_records.values()
        records = msg.content.array_records.items()
        found = {name: dict(each.to_torch_state_dict()) for name, each in records}
        states = {name: found.pop(name) for name in (SERVER_STATE, USER_STATE) if name in found}
        (weights,) = found.values()
        if not {"layers", "server-round", "local-steps", "local-rate"} <= config.keys():
            raise ValueError
    except ValueError:
        raise SalfError(
            "salf.flower.train cannot answer this message: the server's strategy must be "
            "salf.flower.SALF."
        ) from None
    return config, weights, states


def _recall_states(user: User, context: Context | None) -> None:
    """Go on with what the method keeps on this node."""
    known = None if context is None else context.state.get(USER_STATE)
    if isinstance(known, ArrayRecord):
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in known.to_torch_state_dict().items():
            round, _, name = key.partition(" ")
            states.setdefault(int(round), {})[name] = value
        user.kept.states.update(states)


def _sender(
    compress: str,
    layers: Layers,
    seed: int,
    number: int | None,
    msg: Message,
    context: Context | None,
) -> Sender | None:
    """Who compresses, if the strategy asks for it, with what this node has not sent yet."""
    compression = Compression.parse(compress)
    if compression is None:
        return None
    if compression.remembers and context is None:
        raise SalfError(
            "compress topk keeps what is not sent in the context: pass the context to train."
        )
    # A node's number is as good as any to make its draws its own.
    own = msg.metadata.dst_node_id % 2**32 if number is None else number
    sender = Sender(compression, layers, seed, own)
    known = None if context is None else context.state.get(RESIDUALS)
    if isinstance(known, ArrayRecord):
        for index, residual in known.to_torch_state_dict().items():
            sender.residuals[int(index)] = residual
    return sender


def _recall(user: User, context: Context | None, named: str) -> None:
    """Go on with the times learned before, unless they are of other layers, or damaged."""
    known = None if context is None else context.state.get(TIMES)
    if not isinstance(known, ConfigRecord) or known.get("layers") != named:
        return
    try:
        times = {key: value for key, value in known.items() if key not in ("layers", "rows")}
        user.backpropagation.load_state_dict(times)  # type: ignore[arg-type]  # it checks
        if user.batch is not None and isinstance(rows := known.get("rows"), int) and rows > 0:
            user.batch.rows = rows
    except (SalfError, TypeError):
        return
