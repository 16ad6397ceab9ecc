"""Backpropagation that stops at a deadline, by autograd's hooks.

A hook tells when a layer is complete. If the next one is not expected to fit, it raises: the
backward pass ends before that layer, not after it.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from salf.common.errors import SalfError
from salf.core.deadline.times import FORWARD, Retry, StageTimes
from salf.core.layers import Layers

SLOWEST = 2.0  # how much slower than usual a round may look, since one hiccup is not a slow round
TOO_LATE = 1.1  # deadlines after which a forward pass is stopped


@dataclass(frozen=True)
class Partial:
    """[PartGrad]: the layers d..L that one round completed, and the seconds it took.

    `gradients` is by parameter name, with zeros where the loss does not depend on a parameter and
    nothing for frozen ones. `layers` has the seconds of each completed layer, by its number, from
    the completion of the layers above to its own. `loss` is None if the forward pass was not run to
    its end.
    """

    depth: int
    gradients: dict[str, Tensor]
    loss: Tensor | None
    forward: float
    layers: dict[int, float]
    total: float


class Backpropagation:
    """Backpropagation of one model on one device, round after round, each within its deadline.

        backpropagation = salf.Backpropagation(model, layers)
        partial = backpropagation.within(0.050, lambda: criterion(model(inputs), targets))
        partial.depth, partial.gradients

    It learns from round to round how long the forward pass and each layer take. In the first round
    these times are unknown, so it may end late by one layer. The model is left as it was: hooks are
    removed after each round, and `.grad` is restored.

    `now` is the clock, in seconds; only differences of it are used.
    """

    def __init__(
        self, model: nn.Module, layers: Layers, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model, self.layers = model, layers
        self.times = StageTimes(len(layers))
        self.retry = Retry()
        self._now = now
        owners = {name.rpartition(".")[0] for layer in layers for name in layer.parameters}
        self._modules = [model.get_submodule(name) for name in owners]

    def within(
        self, deadline: float | None, loss: Callable[[], Tensor], *, more: bool = False
    ) -> Partial:
        """Run the forward pass, `loss`, and as much of its backward pass as the deadline allows.

        The deadline is a duration in seconds from this call; None means no deadline. If the forward
        pass and the last layer are not expected to fit, neither is run, except in a few rounds that
        check whether this is still so (`Retry`). With `more`, this is a further local
        step of a round whose result would be lost by being late, so there are no such checks.
        """
        limit = math.inf if deadline is None else deadline
        if more and self.times.first_layer() > limit:
            return Partial(len(self.layers) + 1, {}, None, 0.0, {}, 0.0)
        trying = self.retry.due and not more
        round = _Round(limit, self.times, self._now, trying=trying, more=more)
        value, gradients = None, {}
        learned: dict[int, float] = {}  # what else than the time it took is learned of a stage
        chance = self.times.chance(limit)
        if limit >= 0 and (more or self.retry.starts(chance)):
            with suppress(_TimeIsUp), ExitStack() as hooks:
                for module in self._modules:
                    hooks.enter_context(module.register_forward_pre_hook(round.check))
                value = loss()
            if value is None:
                round.lap(FORWARD)
                learned[FORWARD] = self.times.whole_pass(round.began, round.seconds[FORWARD])
            else:
                gradients = self._backward(value, round)
                value = value.detach()  # frees the graph, which takes time too
                round.lap(self.times.back)
                self.times.learn_course(round.began, round.seconds[FORWARD])
        if limit >= 0 and not more:
            self.retry.learn(chance, started=FORWARD in round.seconds)
        self.times.learn(round.seconds | learned)
        return Partial(
            round.depth,
            gradients,
            value,
            round.seconds.get(FORWARD, 0.0),
            {number: round.seconds[number] for number in range(round.depth, len(self.layers) + 1)},
            round.elapsed(),
        )

    def _backward(self, loss: Tensor, round: "_Round") -> dict[str, Tensor]:
        """Backpropagate until the round says stop, and take the reached layers' gradients."""
        number = {name: index + 1 for name, index in self.layers.index_of.items()}
        trainable = {
            n: p for n, p in self.model.named_parameters() if n in number and p.requires_grad
        }
        leaves = _leaves_of(loss) if loss.requires_grad else set()
        awaited = {name: p for name, p in trainable.items() if id(p) in leaves}
        if trainable and not awaited:
            raise SalfError(
                "the loss depends on no trainable parameter of the model: "
                "was it computed without gradients, or from another model?"
            )
        with ExitStack() as undo:
            # Gradients are gathered in empty places, so that none is added to one from before.
            for parameter in trainable.values():
                undo.callback(setattr, parameter, "grad", parameter.grad)
                parameter.grad = None
            for name, parameter in awaited.items():
                register = parameter.register_post_accumulate_grad_hook
                undo.enter_context(register(round.hook(number[name])))  # type: ignore[no-untyped-call]
            if round.begin(number[name] for name in awaited):
                with suppress(_TimeIsUp):
                    torch.autograd.backward(loss, inputs=list(awaited.values()))
            gradients = {
                name: torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in trainable.items()
                if number[name] >= round.depth
            }
        if round.depth > 1:
            # Autograd keeps what was ready to run when it stopped, and so the graph with all its
            # activations, until the next backward of this thread.
            torch.autograd.backward(torch.zeros((), requires_grad=True))
        return gradients

    def state_dict(self) -> dict[str, list[float]]:
        """The times learned, for another process that continues in this one's place."""
        return {
            **{str(stage): list(seen) for stage, seen in enumerate(self.times.seen)},
            "absent": list(self.times.absent),
            "ages": list(self.times.ages),
            "course": list(self.times.course),
            "cold": [self.retry.cold],
            "credit": [self.retry.credit],
        }

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue with what another process learned about the same layers on this device."""
        if state.keys() != self.state_dict().keys():
            raise SalfError(f"the learned times are not those of {len(self.layers)} layers.")
        self.times, self.retry = StageTimes(len(self.layers)), Retry()
        for stage, seen in enumerate(self.times.seen):
            seen.extend(state[str(stage)])
        self.times.absent = [int(rounds) for rounds in state["absent"]]
        self.times.ages.extend(map(int, state["ages"]))
        self.times.course = list(state["course"])
        self.retry.cold, self.retry.credit = int(state["cold"][0]), state["credit"][0]


class _TimeIsUp(Exception):
    """How a hook ends the forward or the backward pass."""


class _Round:
    """One round: which layers are complete, how long they took, and whether the next one fits."""

    def __init__(
        self,
        deadline: float,
        times: StageTimes,
        now: Callable[[], float],
        *,
        trying: bool,
        more: bool,
    ) -> None:
        self._start = self._mark = now()
        self.depth = times.last + 1  # no layer is complete
        self.seconds: dict[int, float] = {}
        self.began: list[float] = []  # when modules of the forward pass did, since the start
        self._pending = [0] * (times.last + 1)  # parameters without their gradient, by layer
        self._deadline, self._times, self._now, self._trying = deadline, times, now, trying
        self._more = more
        self._took = self._usual = 0.0  # by the stages of this round, and by them in other rounds

    def elapsed(self) -> float:
        return self._now() - self._start

    def lap(self, stage: int) -> None:
        """A stage is complete: it took the time since the one before it was."""
        if torch.accelerator.is_available():  # it runs asynchronously
            torch.accelerator.synchronize()
        now = self._now()
        self.seconds[stage] = now - self._mark
        self._mark = now
        if usual := self._times.usual(stage):
            self._took += self.seconds[stage]
            self._usual += usual

    def check(self, *_: object) -> None:
        """The hook before a module of the forward pass: stop a pass that is clearly too late.

        Clearly, because its time is learned: a near miss must not look the same as a slow device.
        """
        self.began.append(self.elapsed())
        if self.began[-1] > TOO_LATE * self._deadline:
            raise _TimeIsUp

    def _continues(self) -> bool:
        """Whether to run the next layer."""
        times, stage = self._times, self.depth - 1
        left = self._deadline - (self._mark - self._start)
        pace = min(self._took / self._usual, SLOWEST) if self._usual else 1.0
        # Where nothing is complete, there is nothing to lose by being late.
        if stage == times.last and not self._more:
            needed = pace * times.usual(stage) + times.usual(times.back)
            return needed <= left or (self._trying and left > 0)
        return times.expected(stage, pace) + times.likely(times.back) <= left

    def begin(self, awaited: Iterable[int]) -> bool:
        """The forward pass is complete; whether to backpropagate to parameters of these layers."""
        for number in awaited:
            self._pending[number] += 1
        self.lap(FORWARD)
        self._pass_complete_layers()
        return self.depth > 1 and self._continues()

    def hook(self, number: int) -> Callable[[Tensor], None]:
        """The hook for parameters of this layer, called when a gradient is complete."""

        def complete(parameter: Tensor) -> None:
            self._pending[number] -= 1
            if number == self.depth - 1 and not self._pending[number]:
                self.lap(number)
                self.depth = number
                self._pass_complete_layers()
                if self.depth > 1 and not self._continues():
                    raise _TimeIsUp

        return complete

    def _pass_complete_layers(self) -> None:
        """Skip layers without pending parameters: frozen, unused, or complete before their turn."""
        while self.depth > 1 and not self._pending[self.depth - 1]:
            self.depth -= 1
            self.seconds[self.depth] = 0.0


def _leaves_of(output: Tensor) -> set[int]:
    """The ids of the tensors at which the backward pass of this output ends."""
    ahead: list[Node] = [get_gradient_edge(output).node]
    found = set(ahead)
    for node in ahead:  # which grows on the way
        for below, _ in node.next_functions:
            if below is not None and below not in found:
                found.add(below)
                ahead.append(below)
    # Only at the ends: nodes of functions of one's own may have such an attribute too.
    return {id(getattr(node, "variable", None)) for node in ahead if not node.next_functions}
