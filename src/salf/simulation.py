"""The simulated federation: one round after the other, reproducible from a seed.

Every random draw of round t is keyed by (seed, t) and, where it is one user's, by the user. So a
simulation that is stopped after any round and set up again continues exactly as it would have.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salf.common.errors import SalfError, TrainingDiverged
from salf.core.aggregate import UserId
from salf.core.arrivals import Arrivals, Floats, Ints
from salf.core.draws import Keyed
from salf.core.rows import Row, timed
from salf.core.server import SGD, Optimiser, Schedule, Server
from salf.data.sampling import ONE_STEP, Batches, Cohort, LocalWork
from salf.engines import Engine, LocalSteps, RoundResult
from salf.engines import engine as make_engine
from salf.engines.base import RowsOf
from salf.engines.dropout import seed_torch
from salf.methods import Method, RoundPlan
from salf.problem import Problem
from salf.stages.attacks import POISONS, PoisonedRows
from salf.stages.pipeline import Pipeline, Stages, Voice
from salf.stages.states import Progress
from salf.worlds.base import World

ROUNDING = 1e-9  # of a sum of many times, relative to it


@dataclass(frozen=True)
class Recipe:
    """How users and server train, and who takes part in a round.

    `batch_size` is one number for all users, or one per user. With a `cohort`, only the users drawn
    for a round are asked. Users count equally or, with `by_samples`, in proportion to their number
    of samples.
    """

    lr: Schedule
    optimiser: Optimiser | None = None  # plain SGD
    batch_size: int | Ints = 16
    local: LocalWork = ONE_STEP
    cohort: Cohort | None = None
    by_samples: bool = False
    engine: str | Engine = "auto"


class Simulation:
    """One problem, one method, one server, and users that arrive as in a world.

    `stages` are passed by updates on their way into the step.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        world: World,
        recipe: Recipe,
        stages: Stages | None = None,
        seed: int = 0,
    ) -> None:
        data, local, optimiser = problem.users_data, recipe.local, recipe.optimiser
        more_steps = local.several or "timely" in method.asks.variants
        engine = recipe.engine
        if isinstance(engine, str):
            of = problem.model, problem.layers, problem.loss, problem.example
            engine = make_engine(engine, *of, more_steps)
        if len(data) != world.users or len(engine.layers) != world.layers:
            raise SalfError(
                f"the depths are for {world.users} users and {world.layers} layers, not for "
                f"{len(data)} and {len(engine.layers)}."
            )
        if why := method.refuses(optimiser or SGD()):
            raise SalfError(f"{method.name} {why}.")
        self.problem, self.method, self.engine = problem, method, engine
        self.world = method.world(world)
        self.data = data
        self.batches = Batches(data, recipe.batch_size, local.epochs)
        self.local = local
        self.planned = self.batches.steps(local)  # how many local steps users are to do in a round
        self.cohort = recipe.cohort or Cohort(len(data), len(data))
        self.by_samples = recipe.by_samples
        self.seed = seed
        self.stages, optimiser = (stages or Stages()).ready(optimiser)
        self.server = Server(engine.weights, recipe.lr, optimiser, local.rate)
        self.t = 0  # rounds done
        self.pipeline = Pipeline(self.stages, method, engine.layers, engine.weights, seed)
        # No method of this object: then the engine, and so its workers, would outlive it.
        self._rows: RowsOf = self.batches.of_round
        attackers = self.stages.attackers
        if attackers is not None and attackers.attack.kind in POISONS:
            example = problem.example
            classes = 0 if example is None else engine.predict(example[:2]).shape[1]
            self._rows = partial(PoisonedRows, self.batches.of_round, attackers, classes)
        if recipe.engine == "auto":
            engine.rows_of = self._rows
        keeps = (self.pipeline.states or self.pipeline.recall) is not None
        # For anything about its users, or beyond the round.
        self.asks = method.asks.about_users or keeps
        # Whether equal arrivals have equal plans.
        asks = self.asks or method.asks.narrows or "round" in method.asks.read
        self._repeats = type(method).plan is Method.plan and not asks
        self._last: tuple[object, RoundPlan] | None = None
        # The weight of all users, asked or not, which only methods that keep something ask for.
        weighed = recipe.by_samples and keeps
        self.everybody = float(data.sizes(np.arange(len(data))).sum() if weighed else len(data))
        self.voice = Voice(len(data))
        self.memory = self.world.start()
        self.old: dict[int, dict[str, Tensor]] = {}  # models users still compute on, by round

    @property
    def model(self) -> nn.Module:
        return self.engine.model

    @property
    def clock(self) -> float | None:
        """The simulated seconds so far; None in a world without a clock."""
        return self.world.clock(self.memory)

    def step(self) -> Row:
        row = self.step_until(None)
        assert row is not None
        return row

    def step_until(self, end: float | None) -> Row | None:
        """Run one round: draw the cohort and its arrivals, weigh them, compute and take the step.

        Returns None, and does nothing, if the round would end after the simulated time `end`.
        """
        t = self.t + 1
        draws = Keyed(self.seed, t)
        asked = self.cohort.draw(draws, self.world.busy(t, self.memory))
        arrived, memory = self.world.arrivals(t, draws, asked, self.memory)
        arrived = self.world.checked(arrived, t)
        spent = arrived.spent
        if end is not None and spent is not None and spent.clock > end * (1 + ROUNDING):
            return None
        if self.local.several:
            steps = self.planned(arrived.user)
            arrived = self.world.checked(self.world.in_steps(arrived, steps, draws), t)
        planned = self.planned(asked) if self.local.several else None
        unreached = self.world.checked_unreached(t, asked, planned, self.memory)
        if self.stages.attackers is not None:
            arrived = self.stages.attackers.arrived(arrived)
        if self.by_samples:
            arrived = replace(arrived, weight=self.data.sizes(arrived.user).astype(float))
        arrived = self._known(t, arrived) if self.asks else replace(arrived, round=t)
        plan = self._plan(t, arrived, unreached)
        if gone := {group.given for group in plan.groups} - {t, *self.old}:
            raise SalfError(
                f"a user computed on the model of round {min(gone)}, which was not kept: "
                f"{type(self.world).__name__}.models_in_use must name it."
            )

        # Users without a share compute nothing, so nothing is drawn for them.
        computing = np.concatenate([asked[:0], *(group.users for group in plan.groups)])
        rows = self._rows(draws, computing)
        self.voice.hear(plan, t, self.pipeline.recall, self.everybody)
        with seeded(draws.torch_seed, self.engine.device):
            known = zip(arrived.user.tolist(), arrived.weight.tolist(), strict=True)
            weights = dict(known) if self.asks else {}
            aggregate = self.pipeline.open(t, self.everybody, weights)
            local = self._local_steps(plan, arrived, weights, draws)
            result = self.engine.round(plan, t, self.old, rows, local, aggregate)
        if self.pipeline.rule_watch is not None:
            self.pipeline.rule_watch.check()
        if self.pipeline.states is not None:
            assert plan.closing is not None
            step = self.pipeline.states.close(result.step, plan.closing, self.server.local_rate(t))
            result = replace(result, step=step)
        result = self._checked(result, t)
        if self.asks:
            part = self.method.gradients(arrived, self.world.layers) > 0
            self.pipeline.close(t, weights, part)
        else:
            self.pipeline.watch.check()

        in_use = self.world.models_in_use(memory)
        if t in in_use:
            self.old[t] = snapshot(self.engine.weights)
        shifts = self._towards_old_models(plan, t) if plan.average_models else {}
        self.server.apply(result.step, t)
        if shifts:
            with torch.no_grad():
                for name, shift in shifts.items():
                    self.engine.weights[name].add_(shift)
        self.old = {given: weights for given, weights in self.old.items() if given in in_use}
        self.memory, self.t = memory, t
        return Row(t, result.loss, result.reached, **timed(arrived, computing))

    def _plan(self, t: int, arrived: Arrivals, unreached: Floats) -> RoundPlan:
        """The round's plan, the last one again if the arrivals are: small models feel it."""
        rows, same = self.batches.sizes(arrived.user), self._repeats and arrived.spent is None
        if not same or arrived.straggler.any() or arrived.age.any():
            return self.method.plan(t, arrived, unreached, rows)
        who = arrived.user, arrived.depth, arrived.weight, arrived.steps, arrived.planned
        key = b"".join([each.tobytes() for each in (*who, unreached, rows)]), arrived.asked
        if self._last is None or self._last[0] != key:
            self._last = key, self.method.plan(t, arrived, unreached, rows)
        plan = self._last[1]
        return replace(plan, groups=tuple([replace(group, given=t) for group in plan.groups]))

    def _known(self, t: int, arrived: Arrivals) -> Arrivals:
        """The arrivals with what the method asks for about their users."""
        users, chance = arrived.user, self.pipeline.chance(arrived.user)
        if self.method.asks.chance and chance is None:
            if self.local.several:
                chance = self.world.reach_in_steps(t, users, arrived.planned, self.memory)
            else:
                chance = self.world.reach(t, users, self.memory)
        return replace(
            arrived,
            round=t,
            chances=chance,
            intervals=self.pipeline.intervals(users),
            everybody=self.everybody,
            server=self.pipeline.server_state,
        )

    def _local_steps(
        self, plan: RoundPlan, arrived: Arrivals, weights: Mapping[UserId, float], draws: Keyed
    ) -> LocalSteps:
        """How users take their local steps, and what they are given beside the model."""
        rate, states = self.server.local_rate, self.pipeline.states
        rule = self.pipeline.local_rule(int(arrived.planned.max(initial=1)))
        if states is None:
            return LocalSteps(rate, rule, draws=draws)
        for group in plan.groups:
            for user, gradients in zip(group.users.tolist(), group.gradients.T, strict=True):
                states.begin(user, Progress(gradients, rate(group.given), weights[user]))
        return LocalSteps(rate, rule, states.server, states.of, draws)

    def _towards_old_models(self, plan: RoundPlan, t: int) -> dict[str, Tensor]:
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

    def _checked(self, result: RoundResult, t: int) -> RoundResult:
        """The result, with its loss as a number; an error if the step is not finite.

        Of an accelerator, a round reads this one pair of numbers.
        """
        values = result.step.values
        numbers = [value.reshape(-1) for value in values.values() if value.is_floating_point()]
        total = torch.cat(numbers).sum() if numbers else torch.zeros(())
        loss: Any = result.loss
        if isinstance(loss, Tensor):
            loss, of_all = torch.stack([loss.to(total), total]).tolist()
            result = replace(result, loss=loss)
        else:
            of_all = total.item()
        if isfinite(of_all):
            return result
        layers = self.engine.layers
        bad = [name for name, value in values.items() if not bool(torch.isfinite(value).all())]
        if bad:  # else only the sum overflowed
            index = max(layers.index_of[name] for name in bad)
            raise TrainingDiverged(
                f"training diverged in round {t}: the update of layer {index + 1} "
                f"({layers[index].name}) is not finite. Try a smaller learning rate."
            )
        return result


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let what draws from torch itself (dropout in a model) depend on the round alone."""
    before = torch.default_generator.get_state()
    seed_torch(seed, device)
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
