"""The simulated federation: one round after the other, reproducible from a seed.

Every random draw of round t comes from a generator made of (seed, t), so a simulation that is
stopped after any round and set up again goes on exactly as it would have.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from salf.arrivals import Ints
from salf.data import Samples
from salf.engines import Engine, RoundResult
from salf.errors import SalfError, TrainingDiverged
from salf.methods import Method, Plan
from salf.rows import Row
from salf.schedules import Schedule
from salf.server import SGD, Optimiser, Server
from salf.worlds import World


@dataclass(frozen=True)
class LocalWork:
    """What every user does in a round: local steps, or epochs through its share.

    `rate` is the users' own learning rate; by default they use the server's.
    """

    steps: int = 1
    epochs: int = 0  # instead of steps
    rate: float | None = None

    def planned(self, sizes: Ints, batch_size: int) -> Ints:
        """The local steps of users with so many samples."""
        if self.epochs:
            return np.asarray(self.epochs * -(-sizes // batch_size))
        return np.full(len(sizes), self.steps)


ONE_STEP = LocalWork()


class Simulation:
    """U users, their shares of the data, one method and one server."""

    def __init__(
        self,
        engine: Engine,
        method: Method,
        world: World,
        samples: Samples,
        shares: Sequence[Ints],
        schedule: Schedule,
        optimiser: Optimiser | None = None,
        batch_size: int = 16,
        seed: int = 0,
        *,
        local: LocalWork = ONE_STEP,
    ) -> None:
        if len(shares) != world.users or len(engine.layers) != world.layers:
            raise SalfError(
                f"depths are for {world.users} users and {world.layers} layers, "
                f"not {len(shares)} and {len(engine.layers)}."
            )
        if method.average_models and not isinstance(optimiser, SGD | None):
            raise SalfError(f"{method.name} averages old models, which needs server 'sgd'.")
        if not method.simulated_only:
            method.check_shares_are_own(world.layers)
        self.engine = engine
        self.method = method
        self.world = method.world(world)
        self.samples = samples
        self.batches = Batches(shares, batch_size)
        self.planned = local.planned(self.batches.sizes, batch_size)
        self.local = local
        self.seed = seed
        self.server = Server(engine.weights, schedule, optimiser, local.rate)
        self.t = 0  # rounds done
        self.memory = self.world.start()
        self.old: dict[int, dict[str, Tensor]] = {}  # models users still compute on, by round

    @property
    def model(self) -> nn.Module:
        """The global model."""
        return self.engine.model

    def step(self) -> Row:
        """Run one round: draw the batches, see who arrives, weigh, compute, take the step."""
        t = self.t + 1
        rng, torch_seed = round_rng(self.seed, t)
        rows = RoundRows(self.samples, self.batches.draws(rng, self.planned, self.local.epochs))
        arrived, memory = self.world.arrivals(t, rng, self.memory)
        arrived = self.world.checked(arrived, t)
        if self.planned.max() > 1:
            arrived = self.world.checked(self.world.in_steps(arrived, self.planned, rng), t)
        plan = self.method.plan(t, arrived, self.world.unreached_in_steps(t, self.planned))
        if gone := {group.given for group in plan.groups} - {t, *self.old}:
            raise SalfError(
                f"a user computed on the model of round {min(gone)}, which was not kept: "
                f"{type(self.world).__name__}.models_in_use must name it."
            )

        with seeded(torch_seed):
            result = self.engine.round(plan, t, self.old, rows, self.server.local_rate)
        self._check_finite(result, t)

        in_use = self.world.models_in_use(memory)
        if t in in_use:
            self.old[t] = snapshot(self.engine.weights)
        shifts = self._towards_old_models(plan, t) if plan.average_models else {}
        self.server.apply(result.step, t)
        with torch.no_grad():
            for name, shift in shifts.items():
                self.engine.weights[name].add_(shift)
        self.old = {given: weights for given, weights in self.old.items() if given in in_use}
        self.memory, self.t = memory, t
        return Row(t, result.loss, result.reached)

    def _towards_old_models(self, plan: Plan, t: int) -> dict[str, Tensor]:
        """sum_u c[l, u] (w_old - w): what averaging old models adds to averaging differences."""
        shifts: dict[str, Tensor] = {}
        with torch.no_grad():
            for group in plan.groups:
                if group.given == t:
                    continue
                share = group.weights.sum(axis=1)
                if self.server.client_lr is not None:  # then the server's rate multiplies updates
                    share = share * self.server.schedule(t)
                for name, index in self.engine.layers.index_of.items():
                    now = self.engine.weights[name]
                    if now.dtype.is_floating_point:
                        shift = (self.old[group.given][name] - now) * float(share[index])
                        shifts[name] = shifts[name] + shift if name in shifts else shift
        return shifts

    def _check_finite(self, result: RoundResult, t: int) -> None:
        values = result.step.values
        if not values:
            return
        sums = [value.sum() for value in values.values() if value.is_floating_point()]
        if isfinite(torch.stack(sums).sum().item()):
            return
        layers = self.engine.layers
        bad = [name for name, value in values.items() if not bool(torch.isfinite(value).all())]
        if bad:  # else only the sum overflowed
            index = max(layers.index_of[name] for name in bad)
            raise TrainingDiverged(
                f"training diverged in round {t}: the update of layer {index + 1} "
                f"({layers[index].name}) is not finite. Try a smaller learning rate."
            )


class RoundRows:
    """The mini-batches of one round; `index[step - 1][user]` are the indices of samples."""

    def __init__(self, samples: Samples, index: Sequence[Ints | Sequence[Ints]]) -> None:
        self._samples, self._index = samples, index

    def __call__(self, users: Ints, step: int = 1) -> tuple[Tensor, Tensor]:
        """The rows of some users in a local step, one user after the other."""
        index = self._index[step - 1]
        if isinstance(index, np.ndarray):
            chosen = index[users].reshape(-1)
        else:
            chosen = np.concatenate([index[user] for user in users])
        return self._samples.rows(torch.from_numpy(chosen).to(self._samples.inputs.device))

    def sizes(self, users: Ints, step: int = 1) -> Ints:
        """How many rows each of these users has in a local step."""
        return np.array([len(self._index[step - 1][user]) for user in users])


class Batches:
    """Every user's mini-batch of every round: uniform from its share, without replacement."""

    def __init__(self, shares: Sequence[Ints], batch_size: int) -> None:
        self.sizes = np.array([len(share) for share in shares])
        if batch_size < 1 or self.sizes.min() < batch_size:
            raise SalfError(
                f"a batch of {batch_size} does not fit: the smallest user has "
                f"{self.sizes.min()} samples. Use fewer users or a batch size from 1 to that."
            )
        self.batch_size = batch_size
        self.samples = np.concatenate(shares)
        self.offsets = np.concatenate([[0], self.sizes.cumsum()[:-1]])

    def draw(self, rng: np.random.Generator) -> Ints:
        """One mini-batch of every user: [users, batch size] indices of samples."""
        return np.asarray(self.samples[self.offsets[:, None] + self.picks(rng)])

    def draws(
        self, rng: np.random.Generator, planned: Ints, epochs: int = 0
    ) -> Sequence[Ints | Sequence[Ints]]:
        """All local steps of a round: `[step - 1][user]` are indices of samples."""
        if not epochs:
            return [self.draw(rng) for _ in range(planned.max())]
        return [
            [self.samples[first + own] for first, own in zip(self.offsets, picks, strict=True)]
            for picks in self.step_picks(rng, planned, epochs)
        ]

    def step_picks(
        self, rng: np.random.Generator, planned: Ints, epochs: int = 0
    ) -> Sequence[Ints | Sequence[Ints]]:
        """The same, as places in each user's own share.

        Epochs pass through a permutation of the share; the last batch of each may be smaller.
        """
        if not epochs:
            return [self.picks(rng) for _ in range(planned.max())]
        size = self.batch_size
        of_users = []
        for samples in self.sizes:
            orders = [rng.permutation(samples) for _ in range(epochs)]
            of_users.append([o[at : at + size] for o in orders for at in range(0, samples, size)])
        nothing = np.empty(0, np.int64)
        return [list(step) for step in zip_longest(*of_users, fillvalue=nothing)]

    def picks(self, rng: np.random.Generator) -> Ints:
        """The same as `draw`, as places in each user's own share."""
        shape = (len(self.sizes), self.batch_size)
        picks = (rng.random(shape) * self.sizes[:, None]).astype(np.int64)
        # A batch with a repeated sample is drawn again, which leaves batches without repetition
        # uniform; where that would take long, the user's whole share is permuted instead.
        for user in np.flatnonzero(self.sizes < self.batch_size**2 // 4):
            picks[user] = rng.permutation(self.sizes[user])[: self.batch_size]
        while len(again := np.flatnonzero(_has_repetition(picks))):
            fresh = rng.random((len(again), self.batch_size)) * self.sizes[again, None]
            picks[again] = fresh.astype(np.int64)
        return np.asarray(picks)


def round_rng(seed: int, t: int) -> tuple[np.random.Generator, int]:
    """What round t draws from: a generator, and a seed for what torch itself draws."""
    rng = np.random.default_rng([seed, t])
    return rng, int(rng.integers(2**63))


def _has_repetition(picks: Ints) -> np.ndarray:
    ordered = np.sort(picks, axis=1)
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what draws from torch itself (dropout in a model) depend on the round alone."""
    before = torch.default_generator.get_state()
    # Not torch.manual_seed, which formats a traceback for devices that are not there.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def snapshot(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of a model's tensors that gradients can be taken of."""
    return {
        name: tensor.detach().clone().requires_grad_(tensor.requires_grad)
        for name, tensor in weights.items()
    }


def accuracy(engine: Engine, samples: Samples, rows_at_once: int = 500) -> float:
    """The share of labels that are the largest output, in evaluation mode.

    500 rows at once: with 1,000 the CNN's activations outgrow memory that is reused, and an
    evaluation takes twice as long.
    """
    correct = 0
    for start in range(0, len(samples), rows_at_once):
        stop = min(start + rows_at_once, len(samples))
        inputs, labels = samples.rows(torch.arange(start, stop, device=samples.inputs.device))
        correct += int((engine.predict(inputs).argmax(1) == labels).sum())
    return correct / samples.labels.numel()
