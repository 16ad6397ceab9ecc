"""The user's side of a round: its model, its own data, its clock. Only layers leave it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.backprop import moved
from salf.core.compression import Sender
from salf.core.deadline import Backpropagation, Partial
from salf.core.layers import Layers, is_sent
from salf.live.batches import OwnBatch
from salf.live.update import Update
from salf.stages.attacks import Attack


class User:
    """One user, round after round: takes the model, answers with the layers it reached in time.

    `loss(round, step)` is the loss on the user's mini-batch of a local step of that round, from
    the model it was made with. `steps` is the number of local steps, by default what the server
    asks for. With a `batch`, the user chooses the size of its batches, `batch.rows`. What it learns
    about its own speed stays here.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: Layers,
        loss: Callable[[int, int], Tensor],
        now: Callable[[], float] = time.perf_counter,
        steps: int | None = None,
        batch: OwnBatch | None = None,
        sender: Sender | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.backpropagation = Backpropagation(model, layers, now)
        self._loss = loss
        self._now = now
        self._steps = steps
        self.batch = batch
        self.sender = sender  # if it compresses what it sends

    def packed(self, update: Update) -> Update:
        """The update as it is sent."""
        if self.sender is None:
            return update
        return replace(update, tensors=self.sender.packed(update.tensors, update.round))

    def train(
        self,
        round: int,
        deadline: float | None,
        weights: Mapping[str, Tensor],
        steps: int = 1,
        rate: float = 0.0,
        step_seconds: float = 0.0,
        proximal: float = 0.0,
        whole_steps: bool = False,
    ) -> Update:
        """One round, with as many local steps of this rate as fit.

        `step_seconds` is the time that a step is to take, if the user chooses its batch; 0 leaves
        the batch as it is. `proximal` is mu of FedProx. With `whole_steps`, what there is of a
        further step that is stopped is not sent. All of it counts against the deadline: taking over
        the model, too.
        """
        start = self._now()
        take_over(self.model, weights)
        before = complete = latest = self._buffers()
        planned = self._steps or steps
        if self.batch is not None:
            self.batch.fit(step_seconds, self.backpropagation)
        layers = self.backpropagation.layers
        stages: tuple[float, ...] = ()
        done, depth, total, losses = 1, len(layers) + 1, dict[str, Tensor](), list[float]()
        for step in range(1, planned + 1):
            left = math.inf if deadline is None else deadline - (self._now() - start)
            loss = partial(self._loss, round, step)
            found = self.backpropagation.within(left, loss, more=step > 1)
            if step > 1 and found.depth > (1 if whole_steps else len(layers)):
                break  # nothing of this step counts: the steps before it are delivered
            if step == 1:
                stages = _stages(self._now() - start - found.total, found, len(layers))
            done, depth, gradients = step, found.depth, found.gradients
            if proximal and step > 1:  # w - w_t is -rate times the sum so far
                pull = proximal * rate
                gradients = {name: g - pull * total[name] for name, g in gradients.items()}
            for name, gradient in gradients.items():
                total[name] = total[name] + gradient if name in total else gradient
            losses.append(0.0 if found.loss is None else float(found.loss))
            complete, latest = latest, self._buffers()
            if depth > 1 or step == planned:
                break
            complete = latest
            move(self.model, gradients, rate)
        # A layer that the last step did not reach has moved its buffers in the steps before it.
        differences = {
            name: moved((latest if number >= depth else complete)[name], before[name])
            for number, layer in enumerate(layers, 1)
            for name in layer.buffers
            if name in before and (number >= depth or done > 1)
        }
        return Update(
            self.name,
            round,
            depth,
            {**total, **differences},
            sum(losses) / len(losses),
            self._now() - start,
            done,
            planned,
            0 if self.batch is None else self.batch.rows,
            0.0 if self.batch is None else self.batch.pace(self.backpropagation),
            stages,
        )

    def _buffers(self) -> dict[str, Tensor]:
        """Copies of those that are sent, from which the round's difference is taken."""
        return {
            name: buffer.clone()
            for name, buffer in self.model.named_buffers()
            if is_sent(buffer, is_parameter=False)
        }


class AttackingUser(User):
    """A user that attacks, to try what a server makes of it: user `number`, from 0.

    It takes the time it needs, whatever the deadline is.
    """

    def __init__(self, attack: Attack, number: int, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._attack, self._number = attack, number

    def train(self, round: int, deadline: float | None, *args: Any, **named: Any) -> Update:
        """One round, of which it sends what it likes."""
        update = super().train(round, None, *args, **named)
        layers = self.backpropagation.layers
        return replace(
            update, tensors=self._attack.sent(update.tensors, layers, round, self._number)
        )


def _stages(before: float, found: Partial, layers: int) -> tuple[float, ...]:
    """Seconds of the stages that were completed; what came before them is part of the first."""
    times = [found.layers[number] for number in range(layers, found.depth - 1, -1)]
    if times:
        times[0] += max(0.0, before) + found.forward
    return tuple(round(seconds, 7) for seconds in times)


@torch.no_grad()
def take_over(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Make the model's parameters and buffers those of `weights`."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())[0]
        side = "this model" if odd in own else "the server's"
        raise SalfError(f"the server trains another model: {odd!r} is in {side} only.")
    for name, tensor in weights.items():
        if own[name].shape != tensor.shape:
            raise SalfError(
                f"the server trains another model: {name!r} has shape {tuple(tensor.shape)} "
                f"there and {tuple(own[name].shape)} here."
            )
        own[name].copy_(tensor)


@torch.no_grad()
def move(model: nn.Module, gradients: Mapping[str, Tensor], rate: float) -> None:
    """A local step."""
    for name, parameter in model.named_parameters():
        if name in gradients:
            parameter.sub_(gradients[name], alpha=rate)
