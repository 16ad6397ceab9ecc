"""The users of a live run, each with its part of the data and the batches of the simulator."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salf.core.compression import Compression, Sender
from salf.core.draws import Keyed
from salf.data import Samples
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


@dataclass(frozen=True)
class UserBatches:
    """The mini-batches of a live user, the ones it has in the simulator."""

    seed: int
    number: int  # of 1..U
    samples: Samples
    batch_size: int
    steps: int  # local steps in a round
    epochs: int = 0

    @classmethod
    def of(cls, config: Settings, problem: Problem, number: int) -> "UserBatches":
        """The part of user `number` of a config, whose problem this is."""
        steps = int(planned_steps(config, problem.users_data, np.arange(1))[0])
        own = problem.users_data.own(0)
        return cls(config.seed, number, own, config.batch_size, steps, config.local_epochs)

    def batch(self, round: int, step: int = 1, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Its mini-batch of a local step of a round, the one it has in the simulator.

        `rows` is its size, by default the batch size of the config.
        """
        draws, user, size = Keyed(self.seed, round), self.number - 1, len(self.samples)
        if self.epochs:
            drawn = epoch_places(draws, user, size, self.batch_size, step)
        else:
            rows = rows or self.batch_size
            drawn = places(draws, np.array([user]), np.array([size]), rows, step)[0]
        return self.samples.rows(torch.from_numpy(drawn).to(self.samples.inputs.device))

    def draws(self, round: int, step: int = 1) -> AbstractContextManager[None]:
        """Let what torch itself draws (dropout) be this user's own in this round, and no other's.

        In the simulator all users draw from one sequence, so such a model replays in law only.
        """
        seed = Keyed(self.seed, round).torch_seed
        return seeded((seed + self.number + ((step - 1) << 32)) % 2**63)


def make_user(config: Settings, number: int, slow: float = 1.0, folder: Path | None = None) -> User:
    """User `number` of 1..U, with its part of the data, on a device as much slower as asked for.

    What a method keeps of it is in a file of the `folder`, if there is one.
    """
    name = user_name(number)
    problem = problem_of_user(config, number - 1)
    batches = UserBatches.of(config, problem, number)
    if slow != 1:
        Slowdown(problem.model, slow)
    own = OwnBatch(config.batch_size, len(batches.samples)) if config.equal_time() else None

    def loss(round: int, step: int) -> Tensor:
        inputs, targets = batches.batch(round, step, None if own is None else own.rows)
        with batches.draws(round, step):
            return problem.loss(problem.model(inputs), targets).mean()

    sender, compression = None, Compression.parse(config.compress)
    if compression is not None:
        sender = Sender(compression, problem.layers, config.seed, number - 1)
    return User(
        name,
        problem,
        loss,
        steps=batches.steps,
        batch=own,
        sender=sender,
        method=config.make_method(),
        kept=OwnState(None if folder is None else folder / f"{name}.safetensors"),
    )
