"""The users of a live run: each with its share of the data, and the batches of the simulator."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from salf.core.compression import Compression, Sender
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.data import Samples
from salf.data.sampling import epoch_places, places
from salf.engines import cross_entropy
from salf.live.batches import OwnBatch
from salf.live.slow import Slowdown
from salf.live.user import User
from salf.methods.fedavg import FedAvg
from salf.runs.config import Config
from salf.runs.federation import from_config
from salf.runs.live_config import LiveConfig
from salf.simulation import seeded


def user_name(number: int) -> str:
    """What user 1..U of a config is called."""
    return f"user-{number}"


@dataclass(frozen=True)
class Share:
    """What a user of a config has: the model to be trained, and its own part of the data."""

    seed: int
    number: int  # of 1..U
    model: nn.Module
    layers: Layers
    samples: Samples
    batch_size: int
    steps: int  # local steps in a round
    epochs: int = 0

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


def make_share(config: Config | LiveConfig, number: int, slow: float = 1.0) -> Share:
    """That of user `number` of 1..U, on a device as much slower as asked for."""
    # A user needs to know no method, and no engine has to be probed for it.
    simulation = from_config(config.simulated(engine="loop"), method=FedAvg()).simulation
    model, own = simulation.model, simulation.data.own(number - 1)
    if slow != 1:
        Slowdown(model, slow)
    return Share(
        config.seed,
        number,
        model,
        simulation.engine.layers,
        own,
        config.batch_size,
        int(simulation.planned(np.array([number - 1]))[0]),
        config.local_epochs,
    )


def make_user(config: Config | LiveConfig, number: int, slow: float = 1.0) -> User:
    """User `number` of 1..U, with its share of the data and nothing of the others'."""
    share = make_share(config, number, slow)
    own = None
    if config.equal_time():
        own = OwnBatch(config.batch_size, len(share.samples))

    def loss(round: int, step: int) -> Tensor:
        inputs, targets = share.batch(round, step, None if own is None else own.rows)
        with share.draws(round, step):
            return cross_entropy(share.model(inputs), targets).mean()

    sender, compression = None, Compression.parse(config.compress)
    if compression is not None:
        sender = Sender(compression, share.layers, config.seed, number - 1)
    return User(
        user_name(number),
        share.model,
        share.layers,
        loss,
        steps=share.steps,
        batch=own,
        sender=sender,
        method=config.make_method(),
    )
