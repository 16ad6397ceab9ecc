"""The users of a live run, each with its part of the data and the batches of the simulator."""

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salf.core.compression import Compression, Sender
from salf.core.draws import Keyed
from salf.data.sampling import epoch_places, places
from salf.live.batches import OwnBatch
from salf.live.slow import Slowdown
from salf.live.user import OwnState, User
from salf.problem import Problem
from salf.runs.federation import planned_steps, problem_of_user
from salf.runs.settings import Settings
from salf.simulation import seeded


def user_name(number: int) -> str:
    """The name of user 1..U of a config."""
    return f"user-{number}"


class UserBatches:
    """The mini-batches of user `number` (1..U) of a config: the ones it has in the simulator."""

    def __init__(self, config: Settings, problem: Problem, number: int) -> None:
        self.samples = problem.users_data.own(0)
        self.steps = int(planned_steps(config, problem.users_data, np.arange(1))[0])  # in a round
        self._config, self._number = config, number

    def batch(self, round: int, step: int = 1, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Its mini-batch of a local step; `rows` is its size, by default that of the config."""
        draws, user, size = Keyed(self._config.seed, round), self._number - 1, len(self.samples)
        usual = self._config.batch_size
        if self._config.local_epochs:
            drawn = epoch_places(draws, user, size, usual, step)
        else:
            drawn = places(draws, np.array([user]), np.array([size]), rows or usual, step)[0]
        return self.samples.rows(torch.from_numpy(drawn).to(self.samples.inputs.device))

    def draws(self, round: int, step: int = 1) -> AbstractContextManager[None]:
        """Let what torch itself draws (dropout) be this user's own in this round, and no other's.

        In the simulator all users draw from one sequence, so such a model replays in law only.
        """
        seed = Keyed(self._config.seed, round).torch_seed
        return seeded((seed + self._number + ((step - 1) << 32)) % 2**63)


def make_user(config: Settings, number: int, slow: float = 1.0, folder: Path | None = None) -> User:
    """User `number` of 1..U, with its part of the data, on a device as much slower as asked for.

    What a method keeps of it is in a file of the `folder`, if there is one.
    """
    name, problem = user_name(number), problem_of_user(config, number - 1)
    batches = UserBatches(config, problem, number)
    if slow != 1:
        Slowdown(problem.model, slow)
    own = OwnBatch(config.batch_size, len(batches.samples)) if config.equal_time() else None

    def loss(round: int, step: int) -> Tensor:
        inputs, targets = batches.batch(round, step, None if own is None else own.rows)
        with batches.draws(round, step):
            return problem.loss(problem.model(inputs), targets).mean()

    method = config.make_method()
    user = User(name, problem, loss, steps=batches.steps, batch=own, method=method)
    if (compression := Compression.parse(config.compress)) is not None:
        user.sender = Sender(compression, problem.layers, config.seed, number - 1)
    if folder is not None:
        user.kept = OwnState(folder / f"{name}.safetensors")
    return user
