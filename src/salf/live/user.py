"""The user's side of a round: its model, its own data, its clock. Only layers leave it."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.compression import Sender
from salf.core.deadline import Backpropagation
from salf.core.layers import is_sent
from salf.core.local import Local, LocalUpdate, Passed, local_update
from salf.core.rows import read_checkpoint, write_checkpoint
from salf.core.rules import Done, State, Tensors
from salf.live.batches import OwnBatch
from salf.live.update import Task, Update
from salf.methods import Method, from_wire
from salf.methods.asks import Watch
from salf.methods.base import state_of
from salf.problem import Problem
from salf.stages.states import after

log = logging.getLogger("salf.live")


class OwnState:
    """What a method keeps of a user on its device, from round to round.

    A new state counts once the server says that it used the update of that round: so both agree
    about users whose updates are late, lost or refused. With a `path` it is kept in a file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.states: dict[int, State] = {}  # by the round after which they hold; at most two
        self._path = path
        if path is not None and (found := read_checkpoint(path)) is not None:
            self.states = {int(round): state for round, state in found[0].items()}

    def at(self, used: int, fresh: State) -> State:
        """The state after round `used`, the last of which the server used an update."""
        if used and used not in self.states:
            log.warning("the state of this user after round %d is lost: it begins anew", used)
        own = self.states.get(used, fresh)
        self.states = {used: own} if used and own is not fresh else {}
        return own

    def note(self, round: int, state: State) -> None:
        """The state that holds if the update of this round is used."""
        self.states[round] = state
        if self._path is not None:
            write_checkpoint(self._path, {str(n): each for n, each in self.states.items()}, None)


class User:
    """One user, round after round: takes the model, answers with the layers it reached in time.

    `loss(round, step)` is the loss on the user's mini-batch of a local step of that round, from
    the model of its problem. `steps` is the number of local steps, by default what the server
    asks for. With a `batch`, the user chooses the size of its batches, `batch.rows`. What it learns
    about its own speed stays here. `method` is needed if it changes users' local steps and does not
    come with salf; what it keeps on this device is `kept`. With a `sender`, updates are compressed.
    """

    def __init__(
        self,
        name: str,
        problem: Problem,
        loss: Callable[[int, int], Tensor],
        now: Callable[[], float] = time.perf_counter,
        *,
        steps: int | None = None,
        batch: OwnBatch | None = None,
        method: Method | None = None,
    ) -> None:
        self.name, self.model, self.batch = name, problem.model, batch
        self.backpropagation = Backpropagation(problem.model, problem.layers, now)
        self.sender: Sender | None = None
        self.kept = OwnState()
        self._loss, self._now, self._steps, self._method = loss, now, steps, method

    def train(self, task: Task, start: float | None = None) -> Update:
        """One round, with as many local steps as fit, from `start` on the user's clock, or now.

        All of it counts against the deadline: taking over the model, too.
        """
        self._start = self._now() if start is None else start
        self._task = task
        take_over(self.model, task.weights)
        planned = self._steps or task.steps
        if self.batch is not None:
            self.batch.fit(task.step_seconds, self.backpropagation)
        layers = self.backpropagation.layers
        method = (self._method or from_wire(task.method)) if task.method else None
        local = self._local(task, planned, method)
        watch = None if local.rule is None else Watch(local.rule)
        done = local_update(self, layers, planned, local)
        if watch is not None:
            watch.check()
        if method is not None and method.users_keep == "device" and method.defines("user_state"):
            self._keep(method, task, done, planned, local)
        seconds = self._now() - self._start
        packed = self.sender.packed(done.tensors, task.round) if self.sender else done.tensors
        rows = 0 if self.batch is None else self.batch.rows
        pace = 0.0 if self.batch is None else self.batch.pace(self.backpropagation)
        return Update(done.depth, packed, done.loss, seconds, done.steps, planned, rows, pace)

    def backward(self, step: int) -> Passed:
        """The gradients of a local step, as far as the time left allows."""
        task = self._task
        spent = self._now() - self._start
        left = math.inf if task.deadline is None else task.deadline - spent
        loss = partial(self._loss, task.round, step)
        found = self.backpropagation.within(left, loss, more=step > 1)
        value = 0.0 if found.loss is None else float(found.loss)
        return Passed(found.depth, found.gradients, value)

    @torch.no_grad()
    def move(self, gradients: Tensors, rate: float) -> None:
        """Take a local step."""
        for name, parameter in self.model.named_parameters():
            if name in gradients:
                parameter.sub_(gradients[name], alpha=rate)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that are sent."""
        buffers = self.model.named_buffers()
        return {name: buffer.clone() for name, buffer in buffers if is_sent(buffer, False)}

    def _local(self, task: Task, planned: int, method: Method | None) -> Local:
        """How the method wants local steps to be taken."""
        if method is None:
            return Local(task.rate)
        if method.users_keep == "device":
            trained = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
            fresh = state_of(method, "user_state", method.user_state(trained))
            own = self.kept.at(task.used.get(self.name, 0), fresh)
        else:
            own = task.users.get(self.name, {})
        whole = method.takes_whole_steps(len(self.backpropagation.layers))
        return Local(task.rate, method.local_rule(planned), task.server, own, whole)

    def _keep(
        self, method: Method, task: Task, done: LocalUpdate, planned: int, local: Local
    ) -> None:
        """Note the state that the user has once the server has used this update."""
        layers = self.backpropagation.layers
        depth, steps, plan = (np.array([n]) for n in (done.depth, done.steps, planned))
        arrived = Arrivals(depth, steps=steps, planned=plan)
        arrived = replace(arrived, round=task.round, server=task.server)
        share = method.checked_share(arrived, len(layers))
        gradients = np.where(share > 0, method.gradients(arrived, len(layers)), 0)[:, 0]
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        counts = {n: int(gradients[layers.index_of[n]]) for n in done.tensors if n in trained}
        total = {name: done.tensors[name] for name, count in counts.items() if count}
        new = after(method, Done(total, counts, task.rate, task.server, local.own))
        self.kept.note(task.round, new)


@torch.no_grad()
def take_over(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Make the model's parameters and buffers those of `weights`."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in sorted(own.keys() | weights.keys()):
        here, there = (
            f"of shape {tuple(side[name].shape)}" if name in side else "missing"
            for side in (own, weights)
        )
        if here != there:
            raise SalfError(
                f"the server trains another model: {name!r} is {there} there and {here} here."
            )
        own[name].copy_(weights[name])
