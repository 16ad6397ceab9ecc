"""Backpropagation that stops at the clock: the layers a user completes before its deadline.

A round is a sequence of stages: the forward pass, the layers L, L-1, ..., 1, and the way back to
the caller. Autograd tells when a layer is complete; what the stages took in earlier rounds tells
whether the next one still fits. If it does not, backpropagation stops before it, not after.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from salf.errors import SalfError
from salf.layers import Layers

FORWARD = 0  # stages are numbered: the forward pass, then the layers 1..L, then the way back

WINDOW = 16  # rounds that are remembered
LIKELY = 0.8  # a stage is expected to take what it took, at most, in this share of them
SLOWEST = 2.0  # how much slower than usual a round may look, since one hiccup is not a slow round
COLD = 3  # rounds it takes to believe that nothing fits, since the first ones are slower
FORGET = 0.995  # the trust in a time that is one round old: so what is too slow is tried again
# Rounds after which one in which nothing seems to fit is begun all the same: at first soon, as it
# may have been a hiccup, then after twice as many each time.
FIRST_TRY, LAST_TRY = 12, 128


@dataclass(frozen=True)
class Partial:
    """[PartGrad]: the layers d..L that one round completed, and the seconds it took.

    `gradients` is by parameter name, with zeros where the loss does not depend on a parameter and
    nothing for frozen ones. `layers` has the seconds of each completed layer, by its number: from
    the moment the layers above were complete to the moment it was complete too. `loss` is None
    when not even the forward pass was run.
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

    It learns from round to round how long the forward pass and each layer take. The first round
    knows nothing and may end late by one layer. Nothing stays on the model: its hooks live as
    long as one round, and its `.grad` are afterwards what they were before.

    `now` is the clock, in seconds; only differences of it are used.
    """

    def __init__(
        self, model: nn.Module, layers: Layers, now: Callable[[], float] = time.perf_counter
    ) -> None:
        owned = dict(model.named_parameters())
        for name in (name for layer in layers for name in layer.parameters):
            if name not in owned:
                raise SalfError(f"the layers name a parameter {name!r} that the model has not.")
        self.model = model
        self.layers = layers
        self.times = Times(len(layers))
        self._now = now

    def within(self, deadline: float | None, loss: Callable[[], Tensor]) -> Partial:
        """Run the forward pass, `loss`, and as much of its backward pass as the deadline allows.

        The deadline is a duration in seconds, and it counts from this call. None is no deadline.
        When the forward pass and the last layer do not usually fit, neither is run.
        """
        if deadline is not None and math.isnan(deadline):
            raise SalfError("the deadline is not a number. Allowed: seconds, or None for none.")
        clock = _Clock(math.inf if deadline is None else deadline, self.times, self._now)
        value, gradients = None, {}
        if clock.worthwhile():
            value = loss()
            gradients = self._backward(value, clock)
            value = value.detach()  # lets go of the graph, which takes time too
            clock.lap(self.times.back)
        self.times.learn(clock.seconds)
        return Partial(
            clock.depth,
            gradients,
            value,
            clock.seconds.get(FORWARD, 0.0),
            {number: clock.seconds[number] for number in range(clock.depth, len(self.layers) + 1)},
            clock.elapsed(),
        )

    def _backward(self, loss: Tensor, clock: "_Clock") -> dict[str, Tensor]:
        """Backpropagate until the clock says stop, and take the reached layers' gradients."""
        named = dict(self.model.named_parameters())
        names = [name for layer in self.layers for name in layer.parameters]
        trainable = {name: named[name] for name in names if named[name].requires_grad}
        used = _leaves(loss)
        awaited = {name: p for name, p in trainable.items() if id(p) in used}
        if trainable and not awaited:
            raise SalfError(
                "the loss depends on no parameter of the model that can be trained: "
                "was it computed without gradients, or from another model?"
            )
        numbers = {name: self.layers.index_of[name] + 1 for name in awaited}
        # Gradients are gathered in empty places, so that none is added to one from before.
        before = {name: p.grad for name, p in awaited.items()}
        hooks = []
        try:
            for name, parameter in awaited.items():
                parameter.grad = None
                register = parameter.register_post_accumulate_grad_hook
                hooks.append(register(clock.hook(numbers[name])))  # type: ignore[no-untyped-call]
            if clock.begin(numbers.values(), _accelerators(awaited.values())):
                with suppress(_TimeIsUp):
                    torch.autograd.backward(loss, inputs=list(awaited.values()))
            reached = {
                name: trainable[name].grad if name in awaited else None
                for layer in self.layers.reached(clock.depth)
                for name in layer.parameters
                if name in trainable
            }
        finally:
            for handle in hooks:
                handle.remove()
            for name, gradient in before.items():
                awaited[name].grad = gradient
        if clock.depth > 1:
            # What was ready to run when it stopped waits in autograd's queue, and keeps the graph
            # with all its activations, until the next backward of this thread throws it away.
            torch.autograd.backward(torch.zeros((), requires_grad=True))
        return {
            name: torch.zeros_like(trainable[name]) if gradient is None else gradient
            for name, gradient in reached.items()
        }

    def state_dict(self) -> dict[str, list[float]]:
        """What was learned, for a process that goes on in another's place."""
        seen = {str(stage): list(seen) for stage, seen in enumerate(self.times.seen)}
        times = self.times
        return seen | {
            "absent": list(times.absent),
            "cold": [times.cold],
            "patience": [times.patience],
        }

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on with what another process learned about the same layers on this device."""
        stages = range(len(self.layers) + 2)
        if (
            set(state) != {"absent", "cold", "patience", *map(str, stages)}
            or len(state["absent"]) != len(stages)
            or not len(state["cold"]) == len(state["patience"]) == 1
            or not all(0 <= value < math.inf for values in state.values() for value in values)
        ):
            raise SalfError(
                f"the learned times are not those of {len(self.layers)} layers: they need a list "
                f"of seconds for each of '0'..'{len(self.layers) + 1}', 'absent', 'cold' and "
                "'patience'."
            )
        self.times = Times(len(self.layers))
        for stage in stages:
            self.times.seen[stage].extend(state[str(stage)])
            self.times.absent[stage] = int(state["absent"][stage])
        self.times.cold = int(state["cold"][0])
        self.times.patience = int(state["patience"][0])
        self.times.summarise()


class Times:
    """How long each stage of a round takes on this device, learned from earlier rounds.

    A stage that was never seen is expected to take no time: the only way to know is to try.
    """

    def __init__(self, layers: int) -> None:
        self.back = layers + 1  # the stage after the last one: the way back to the caller
        self.seen: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(layers + 2)]
        self.absent = [0] * (layers + 2)  # for how many rounds a stage was not reached
        self.cold = COLD  # rounds until what is usual is believed
        self.patience = FIRST_TRY  # rounds until one is begun although nothing seems to fit
        self.usual: list[float] = []
        self.likely: list[float] = []
        self.summarise()

    def summarise(self) -> None:
        """Bring `usual`, the medians, and `likely`, high quantiles, up to what was seen."""
        self.usual, self.likely = [], []
        for seen, absent in zip(self.seen, self.absent, strict=True):
            ordered, trust = sorted(seen) or [0.0], FORGET**absent
            self.usual.append(trust * ordered[(len(ordered) - 1) // 2])
            self.likely.append(trust * ordered[int(LIKELY * len(ordered))])

    @property
    def trying(self) -> bool:
        """Whether a round is begun although nothing seems to fit: it is its own measure."""
        return self.absent[FORWARD] >= self.patience

    def expected(self, stage: int, pace: float) -> float:
        """The seconds to allow for a stage in a round that is `pace` times as slow as usual."""
        if self.trying:
            return pace * self.usual[stage]
        return max(self.likely[stage], pace * self.usual[stage])

    def learn(self, seconds: Mapping[int, float]) -> None:
        """Take in a round: the stages that were run, and what each took."""
        known = [stage for stage in seconds if self.seen[stage] and not self.absent[stage]]
        before = sum(self.usual[stage] for stage in known)
        recovered = self._was_tried_again(seconds)
        for stage, second in seconds.items():
            if recovered or self.absent[stage] >= WINDOW:  # what was seen then is not so any more
                self.seen[stage].clear()
            self.seen[stage].append(second)
            self.absent[stage] = 0
        self.cold = max(0, self.cold - (FORWARD in seconds))
        self.summarise()
        after = sum(self.usual[stage] for stage in known)
        # Layers that are no longer reached get slower and faster with the device, as those that
        # are reached show.
        drift = after / before if before > 0 else 1.0
        for stage in range(len(self.seen)):
            if stage not in seconds:
                self.seen[stage] = deque((second * drift for second in self.seen[stage]), WINDOW)
                self.absent[stage] += 1
        self.summarise()

    def _was_tried_again(self, seconds: Mapping[int, float]) -> bool:
        """Whether nothing seemed to fit until now, and something did."""
        if FORWARD not in seconds or not self.absent[FORWARD]:
            return False
        fits = self.back - 1 in seconds
        self.patience = FIRST_TRY if fits else min(2 * self.patience, LAST_TRY)
        return fits


class _TimeIsUp(Exception):
    """How a hook ends the backward pass."""


class _Clock:
    """One round: which layers are complete, what they took, and whether the next one fits."""

    def __init__(self, deadline: float, times: Times, now: Callable[[], float]) -> None:
        self._start = self._mark = now()
        self.depth = times.back  # L + 1: no layer is complete
        self.seconds: dict[int, float] = {}
        self._pending = [0] * times.back  # parameters without their gradient, by layer
        self._deadline, self._times, self._now = deadline, times, now
        self._accelerators: tuple[torch.device, ...] = ()
        self._took = self._usual = 0.0  # by the stages of this round, and by them in other rounds

    def elapsed(self) -> float:
        return self._now() - self._start

    def lap(self, stage: int) -> None:
        """A stage is complete: it took the time since the one before it was."""
        for device in self._accelerators:  # they work on behind the host's back
            torch.accelerator.synchronize(device)
        now = self._now()
        self.seconds[stage] = now - self._mark
        self._mark = now
        if usual := self._times.usual[stage]:
            self._took += self.seconds[stage]
            self._usual += usual

    def worthwhile(self) -> bool:
        """Whether a usual round completes the last layer in time; if not, nothing is begun.

        But for a few tries: the device may have become faster, or the first rounds were no usual
        ones.
        """
        times = self._times
        if self._deadline < 0:
            return False
        if times.cold > 0 or times.trying:
            return True
        needed = times.usual[FORWARD] + times.usual[times.back - 1] + times.usual[times.back]
        return needed <= self._deadline

    def fits(self, stage: int) -> bool:
        """Whether this stage, and the way back, are expected to be over by the deadline."""
        pace = min(self._took / self._usual, SLOWEST) if self._usual else 1.0
        needed = self._times.expected(stage, pace) + self._times.likely[self._times.back]
        return self._mark - self._start + needed <= self._deadline

    def begin(self, awaited: Iterable[int], accelerators: Iterable[torch.device]) -> bool:
        """The forward pass is over; whether to backpropagate to parameters of these layers."""
        self._accelerators = tuple(accelerators)
        for number in awaited:
            self._pending[number] += 1
        self.lap(FORWARD)
        self._pass_complete_layers()
        return self.depth > 1 and self.fits(self.depth - 1)

    def hook(self, number: int) -> Callable[[Tensor], None]:
        """What autograd calls when a parameter of this layer has its whole gradient."""

        def complete(parameter: Tensor) -> None:
            self._pending[number] -= 1
            if number == self.depth - 1 and not self._pending[number]:
                self.lap(number)
                self.depth = number
                self._pass_complete_layers()
                if self.depth > 1 and not self.fits(self.depth - 1):
                    raise _TimeIsUp

        return complete

    def _pass_complete_layers(self) -> None:
        """Go past layers that wait for nothing: frozen, unused, or complete before their turn."""
        while self.depth > 1 and not self._pending[self.depth - 1]:
            self.depth -= 1
            self.seconds[self.depth] = 0.0


def _leaves(loss: Tensor) -> set[int]:
    """The ids of the tensors that `loss.backward()` would give a gradient to."""
    leaves: set[int] = set()
    ahead = [get_gradient_edge(loss).node] if loss.requires_grad else []
    found: set[Node] = set(ahead)
    for node in ahead:  # which grows on the way
        below = node.next_functions
        for following, _ in below:
            if following is not None and following not in found:
                found.add(following)
                ahead.append(following)
        if not below:
            leaves.add(id(getattr(node, "variable", None)))
    return leaves


def _accelerators(parameters: Iterable[Tensor]) -> set[torch.device]:
    return {parameter.device for parameter in parameters if parameter.device.type != "cpu"}
