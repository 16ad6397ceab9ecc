"""The server's round, once, for whatever carries the messages.

`open` a round, `take` what comes, `close` it: users who were not heard by then are depth L+1. The
method is one of those that the simulator runs: it gives every update its share on arrival, and the
sums their divisor at closing.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np
import torch

from salf.common.errors import SalfError, TrainingDiverged, in_one_line
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Arrivals, Closing, Floats
from salf.core.compression import Compression
from salf.core.rows import Row, append, read_checkpoint, resume, unreadable, write_checkpoint
from salf.core.rules import Tensors
from salf.core.server import SGD, Optimiser, Schedule, Server
from salf.live.batches import common_time
from salf.live.inspection import Inspection
from salf.live.reach import ReachEstimate
from salf.live.update import Rejected, Task, Update, decode, size_of
from salf.methods import Method, to_wire
from salf.methods import method as make_method
from salf.methods.base import mean_steps
from salf.problem import Problem
from salf.stages.pipeline import Kept, Pipeline, Stages, load_state, state_of
from salf.stages.robust import Robust
from salf.stages.states import Progress
from salf.worlds.fleet import cost
from salf.worlds.fleet.cost import MOST

log = logging.getLogger("salf.live")


class OpenRound:
    """A round that is not closed yet: who was asked, and what has come so far."""

    def __init__(
        self,
        users: Collection[str],
        aggregate: LayerwiseAggregate,
        layers: int,
        local_steps: int,
        deadline: float | None,
    ) -> None:
        self.gone: Sequence[str] = ()  # users whose votes ended because they left
        self.asked = dict.fromkeys(users)
        self.aggregate = aggregate
        self.deadline = deadline  # T_max, where it says how far users could come
        self.updates: dict[str, Update] = {}  # that are used, without tensors
        self.answered: set[str] = set()
        self.failed: set[str] = set()  # who cannot do better, until somebody helps
        self.rejected: list[tuple[str, str]] = []
        self.late = self.bytes = 0  # bytes of the tensors that came, as they came
        self.reach: dict[str, tuple[float, ...]] = {}  # that shares depend on
        # Of every layer: the sum of the shares, how many users have one, and how many local steps'
        # gradients.
        self.shares, self.present, self.gradients = (np.zeros(layers) for _ in range(3))
        self._unheard = Update(layers + 1, {}, planned=local_steps)

    def of(self, user: str) -> Update:
        """What a user who was asked did: nothing, until it is heard."""
        return self.updates.get(user, self._unheard)

    def arrived(self, users: Collection[str]) -> Arrivals:
        """How far these users came."""
        reached = [(each.depth, each.steps, each.planned) for each in map(self.of, users)]
        depths, steps, planned = np.array(reached, np.int64).reshape(-1, 3).T
        return Arrivals(depths, steps=steps, planned=planned)

    def row(self, t: int, layers: int, unreached: Floats, local_steps: int) -> Row:
        """The record of the round."""
        used, all_asked = self.updates, {user: self.of(user) for user in self.asked}
        losses = [u.loss for u in used.values() if u.first <= layers]
        many = all_asked if local_steps > 1 else {}
        return Row(
            t,
            sum(losses) / len(losses) if losses else float("nan"),
            tuple(self.aggregate.reached.tolist()),
            depths={user: each.depth for user, each in all_asked.items()},
            unreached=tuple(unreached.tolist()),
            late=self.late,
            bytes=self.bytes,
            rejected=tuple(self.rejected),
            silent=tuple(sorted(self.asked.keys() - self.answered)),
            gone=tuple(self.gone),
            deadline=self.deadline,
            reach=self.reach,
            steps={user: (each.steps, each.planned) for user, each in many.items()},
            rows={user: each.rows for user, each in used.items() if each.rows},
        )


@dataclass(frozen=True)
class ServerSettings:
    """How a live server trains, whatever carries its messages.

    - `method`: a method, its name or import path.
    - `optimiser`: by default plain SGD.
    - `local_steps`: how many local steps users are asked for, and the most they may do; `client_lr`
      is the learning rate of these steps, by default the server's.
    - `equal_time`: a batch size, if users choose their batches such that a step takes all of them
      about as long (`salf.live.batches`).
    - `unreached`: p_l; by default they are learned from the reach seen so far.
    - `max_norm`: bounds every layer's gradient; by default nothing does.
    - `robust`: a rule that tolerates so many bad users.
    - `compress`: how users compress what they send (`salf.core.compression`).
    """

    method: Method | str = "salf"
    optimiser: Optimiser | None = None
    local_steps: int = 1
    client_lr: float | None = None
    equal_time: int | None = None
    unreached: Sequence[float] | None = None
    max_norm: float | None = None
    robust: str = "none"
    tolerate: int = 1
    compress: str = ""


class LiveServer:
    """One model, its rounds, and nothing about how messages travel."""

    def __init__(
        self, problem: Problem, lr: float | Schedule, settings: ServerSettings | None = None
    ) -> None:
        settings, layers = settings or ServerSettings(), problem.layers
        method = settings.method
        self.method = make_method(method) if isinstance(method, str) else method
        if why := self.method.asks.simulated_only:
            raise SalfError(f"{self.method.name} runs in the simulator only: {why}.")
        if why := self.method.refuses(settings.optimiser or SGD()):
            raise SalfError(f"{self.method.name} {why}.")
        self.layers, self.weights = layers, problem.weights
        schedule = lr if callable(lr) else lambda t: lr
        robust, compress = settings.robust, Compression.parse(settings.compress)
        rule = None if robust == "none" else Robust(robust, settings.tolerate)
        stages = Stages(rule, compress, count_reach=True)
        stages, optimiser = stages.ready(settings.optimiser)
        self.server = Server(self.weights, schedule, optimiser, settings.client_lr)
        self.inspection = Inspection(layers, self.weights, settings.max_norm, settings.local_steps)
        self.local_steps = settings.local_steps
        self.given_unreached = None
        if settings.unreached is not None:
            self.given_unreached = given = np.asarray(settings.unreached, np.float64)
            if given.shape != (len(layers),) or not ((given >= 0) & (given < 1)).all():
                raise SalfError(
                    f"unreached must be {len(layers)} probabilities in [0, 1), one for each layer."
                )
        work = _stage_work(problem)
        self.done_after = work.cumsum() / work.sum()  # the part of the work
        self.reach = ReachEstimate(len(layers))
        self.pipeline = Pipeline(stages, self.method, layers, self.weights)
        self.names: dict[str, None] = {}  # of all users that were ever asked, in order
        self.equal_time = settings.equal_time
        self.paces: dict[str, float] = {}  # seconds a row takes each user, if they choose batches
        self.t_max = 0.0  # that a deadline which is adapted is at; 0 until it is found
        self.t = 0  # rounds closed
        self.present: Collection[str] | None = None  # where known: others lose their votes
        self._round: OpenRound | None = None
        self._size = size_of(self.weights)
        self._most_rows = MOST * (settings.equal_time or 0)  # of users who choose their batches

    @property
    def round(self) -> OpenRound:
        if self._round is None:
            raise SalfError("no round is open.")
        return self._round

    def open(self, users: Collection[str], deadline: float | None = None) -> int:
        """Begin the next round with these users, and return its number.

        `deadline` is T_max, if users are to be expected to come as far as they do in other rounds.
        """
        if self._round is not None:
            raise SalfError(f"round {self.t + 1} is already open.")
        self.names |= dict.fromkeys(users)
        aggregate = self.pipeline.open(self.t + 1, len(self.names), {})
        self._round = OpenRound(users, aggregate, len(self.layers), self.local_steps, deadline)
        if self.present is not None:
            self._round.gone = self.pipeline.left(self.present)
        return self.t + 1

    def task(self, deadline: float | None, fixed: bool = True) -> Task:
        """The task of users in the next round; `fixed` if the deadline is not adapted."""
        t = self.t + 1
        # If both followed each other, users would end with batches of one row.
        step_seconds = self.step_seconds(deadline if fixed else None)
        rate, method = self.server.local_rate(t), to_wire(self.method)
        task = Task(t, deadline, self.weights, self.local_steps, rate, step_seconds, method)
        if (states := self.pipeline.states) is None:
            return task
        if self.method.users_keep == "device":
            return replace(task, server=states.server, used=states.used)
        users = {user: states.of(user) for user in self.round.asked}
        return replace(task, server=states.server, users=users)

    def step_seconds(self, deadline: float | None) -> float:
        """The seconds of a step for users who choose their batches; 0 if unknown."""
        if self.equal_time is None:
            return 0.0
        return common_time(self.paces, self.equal_time, deadline, self.local_steps)

    def missing(self) -> set[str]:
        """The users asked who have not answered."""
        return self.round.asked.keys() - self.round.answered

    def take(self, user: str, data: bytes, asked: int | None = None) -> Update | None:
        """Use an update, or note why not, and return it unless it is bad. The round goes on.

        Who sent it and which round it is in reply to (by default this one), whoever carries the
        messages knows. One of an earlier round is late: it is counted, and not used.
        """
        t, round = self.t + 1, self.round
        try:
            update = decode(data, self._size)
            if asked is not None and asked < t:
                round.late += 1
                log.info("round %d: late update from %s, for round %d", t, in_one_line(user), asked)
                return update
            if update.rows > self._most_rows:
                raise Rejected(f"its {update.rows} rows are more than {self._most_rows}")
            if user not in round.asked:
                raise Rejected("this user was not asked")
            if user in round.answered:
                raise Rejected("this user has already sent an update in this round")
            round.bytes += sum(tensor.nbytes for tensor in update.tensors.values())
            if self.pipeline.stages.compression is not None:
                update = replace(update, tensors=self._received(update.tensors))
            self.inspection.check(update)
        except Rejected as reason:
            self.refuse(user, reason, asked)
            return None
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            # Whatever a kind of tensor that nobody thought of makes torch raise.
            self.refuse(user, Rejected(f"it cannot be checked: {in_one_line(error)}"), asked)
            return None
        round.answered.add(user)
        self._use(user, update)
        return update

    def _received(self, packed: Tensors) -> Tensors:
        try:
            return self.pipeline.received(packed)
        except ValueError as error:
            raise Rejected(f"wrong compression: {error}") from None

    def refuse(self, user: str, reason: Rejected, asked: int | None = None) -> None:
        """Note why a user has no update that could be used."""
        t, round, name = self.t + 1, self.round, in_one_line(user)
        if asked is not None and asked < t:  # it says nothing about this round
            round.late += 1
            log.info("round %d: late from %s, for round %d: %s", t, name, asked, reason)
            return
        round.failed.add(user)
        round.answered.add(user)
        round.rejected.append((user, str(reason)))
        log.warning("round %d: rejected update from %s: %s", t, name, reason)

    def close(self) -> Row:
        """End the round: take the step, and learn from it."""
        t, round, unreached = self.t + 1, self.round, self._unreached()
        closing = Closing(
            users=len(round.asked),
            reached=round.aggregate.reached,
            shares=round.shares,
            unreached=unreached,
            everybody=len(self.names),
            round=t,
            present=round.present,
            steps=mean_steps(round.gradients, round.present),
            server=self.pipeline.server_state,
        )
        with torch.no_grad():
            step = round.aggregate.total(round.shares, self.method.checked_divisor(closing))
            if self.pipeline.states is not None:
                step = self.pipeline.states.close(step, closing, self.server.local_rate(t))
            self.server.apply(step, t)
        self._check_finite(step.values, t)
        # Users whose updates were bad say nothing about how far they come, or how often.
        bad = {user for user, _ in round.rejected} - round.updates.keys()
        good = [user for user in round.asked if user not in bad]
        if good:  # else all failed, or nobody was asked: time was enough
            # Who reached a layer, not whom the method counted: p_l is about the former.
            self.reach.learn([round.of(user).first for user in good])
        part = self.method.gradients(round.arrived(good), len(self.layers)) > 0
        self.pipeline.close(t, dict.fromkeys(good, 1.0), part)
        self.t, self._round = t, None
        return round.row(t, len(self.layers), unreached, self.local_steps)

    @property
    def _kept(self) -> dict[str, Kept]:
        return {"reach": self.reach, **self.pipeline.kept}

    def save(self, path: Path) -> None:
        """Write everything a server that is started again needs to continue after this round."""
        own = {"round": self.t, "t_max": self.t_max, "paces": self.paces, "names": [*self.names]}
        groups, kept = state_of(self._kept)
        groups |= {"weights": self.weights, **self.server.state}
        write_checkpoint(path, groups, {**own, "kept": kept})

    def resume(self, state: Path | None, record: Path | None) -> list[Row]:
        """Continue after the last round that was kept in these files, and return its rounds."""
        if state is not None:
            self.restore(state)
        return [] if record is None else resume(record, self.t, saved=state is not None)

    def keep(self, row: Row, state: Path | None, record: Path | None) -> None:
        """Keep a closed round. The state comes last: a round that it does not have is run again."""
        if record is not None:
            append(record, row)
        if state is not None:
            self.save(state)

    def end(self, state: Path | None) -> None:
        """Keep no single user's updates, now that all rounds are run."""
        self.pipeline.forget()
        if state is not None:
            self.save(state)

    def restore(self, path: Path) -> None:
        """Continue after the last closed round that was saved; or leave all as it is."""
        if (found := read_checkpoint(path)) is None:
            return
        groups, state = found
        try:
            weights = {name: groups["weights"][name] for name in self.weights}
            for name, tensor in weights.items():
                if tensor.shape != self.weights[name].shape:
                    raise ValueError(f"the shape of {name!r} differs")
            load_state(self._kept, groups, state["kept"])
            self.server.load_state(groups)
            self.t_max, self.paces = float(state["t_max"]), dict(state["paces"])
            self.names, self.t = dict.fromkeys(state["names"]), int(state["round"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise unreadable(path, error) from None
        with torch.no_grad():
            for name, tensor in weights.items():
                self.weights[name].copy_(tensor)

    def _use(self, user: str, update: Update) -> None:
        round, layers = self.round, len(self.layers)
        round.updates[user] = replace(update, tensors={})
        if self.equal_time is not None and update.pace > 0:
            self.paces[user] = update.pace
        if (chance := self._chance(user)) is not None:
            round.reach[user] = tuple(chance[:, 0].tolist())
        arrived = replace(
            round.arrived([user]),
            chances=chance,
            intervals=self.pipeline.intervals([user]),
            round=self.t + 1,
            server=self.pipeline.server_state,
        )
        share = self.method.checked_share(arrived, layers)[:, 0]
        gradients = np.where(share > 0, self.method.gradients(arrived, layers)[:, 0], 0)
        if (states := self.pipeline.states) is not None:
            rate = self.server.local_rate(self.t + 1)
            states.begin(user, Progress(gradients, rate, 1.0))
            if share.any():
                states.used[user] = self.t + 1
        round.aggregate.add(update.tensors, share, user=user)
        round.shares += share
        round.present += share > 0
        round.gradients += gradients

    def _chance(self, user: str) -> Floats | None:
        """How likely a user is to reach each layer, [L, 1], if the method weighs by it."""
        if not self.method.asks.chance:
            return None
        return self.pipeline.chance([user])

    def _unreached(self) -> Floats:
        if self.given_unreached is not None:
            return self.given_unreached
        return self.reach.unreached()

    def _check_finite(self, moved: Collection[str], t: int) -> None:
        """Good updates may still add up to a model that overflows."""
        for name in moved:
            weight = self.weights[name].detach()
            # Not of buffers, which may be infinite by design: masks are.
            if self.weights[name].requires_grad and not isfinite(float(weight.sum())):
                raise TrainingDiverged(
                    f"training diverged in round {t}: {name!r} is not finite. "
                    "Try a smaller learning rate."
                )


def _stage_work(problem: Problem) -> Floats:
    """The work of each stage of backpropagation, from the last layer on; alike if not counted."""
    try:
        if problem.example is not None:
            found = cost.Cost.of(problem.model, problem.layers, problem.example)
            return cost.stages(found.multiply_adds)
    except SalfError:
        pass
    return np.ones(len(problem.layers))
