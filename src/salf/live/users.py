"""The users of a live run, each with its part of the data and the batches of the simulator."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salf.core.compression import Compression, Sender
from salf.core.draws import Keyed
from salf.data import Samples
from salf.data.sampling import epoch_places, places
from salf.engines.base import may_drop
from salf.engines.dropout import Dropout
from salf.live.batches import OwnBatch
from salf.live.slow import Slowdown
from salf.live.user import OwnState, User
from salf.runs.federation import planned_steps, problem_of_user
from salf.runs.settings import Settings


def user_name(number: int) -> str:
    """The name of user 1..U of a config."""
    return f"user-{number}"


def batch_of(
    config: Settings, number: int, samples: Samples, round: int, step: int, rows: int
) -> tuple[Tensor, Tensor]:
    """The mini-batch of user 1..U in a local step, of its samples: the simulator's."""
    draws, user, size = Keyed(config.seed, round), number - 1, len(samples)
    if config.local_epochs:
        drawn = epoch_places(draws, user, size, config.batch_size, step)
    else:
        drawn = places(draws, np.array([user]), np.array([size]), rows, step)[0]
    return samples.rows(torch.from_numpy(drawn).to(samples.inputs.device))


def make_user(config: Settings, number: int, slow: float = 1.0, folder: Path | None = None) -> User:
    """User `number` of 1..U, with its part of the data, on a device as much slower as asked for.

    What a method keeps of it is in a file of the `folder`, if there is one.
    """
    name, problem = user_name(number), problem_of_user(config, number - 1)
    samples = problem.users_data.own(0)
    steps = int(planned_steps(config, problem.users_data, np.arange(1))[0])
    if slow != 1:
        Slowdown(problem.model, slow)
    own = OwnBatch(config.batch_size, len(samples)) if config.equal_time() else None

    dropout: AbstractContextManager[object] = nullcontext()

    def loss(round: int, step: int) -> Tensor:
        nonlocal dropout
        if step == 1:  # dropout, and what else torch draws, is the simulator's
            draws = Keyed(config.seed, round)
            torch.default_generator.manual_seed(draws.torch_seed_of(number - 1))
            if may_drop(problem.model):
                dropout = Dropout(draws, np.array([number - 1]))
        rows = config.batch_size if own is None else own.rows
        inputs, targets = batch_of(config, number, samples, round, step, rows)
        with dropout:
            outputs = problem.model(inputs)
        return problem.loss(outputs, targets).mean()

    user = User(name, problem, loss, steps=steps, batch=own, method=config.make_method())
    if (compression := Compression.parse(config.compress)) is not None:
        user.sender = Sender(compression, problem.layers, config.seed, number - 1)
    if folder is not None:
        user.kept = OwnState(folder / f"{name}.safetensors")
    return user
