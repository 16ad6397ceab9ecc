"""The server's step: its learning rate and optimiser, and a layer nobody reached left as it is.

With `client_lr`, the users' update is client_lr times the sum of their gradients, and the server's
rate multiplies it (FedOpt). Without, users step with the server's rate, and a round with plain SGD
is w <- w - lr(t) * mean of the sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import cos, pi
from typing import TYPE_CHECKING, Any

from salf.common.errors import SalfError, unknown

if TYPE_CHECKING:  # methods name optimisers, and the command line all methods: without torch
    from torch import Tensor

    from salf.core.aggregate import Step

# The learning rate of round t, t = 1, 2, ...
Schedule = Callable[[int], float]


def theorem_gamma(rho_c: float, rho_s: float) -> float:
    """gamma = max(8 kappa, 1), kappa = rho_s / rho_c [thm:FL_Convergence]."""
    if not 0 < rho_c <= rho_s:
        raise SalfError(f"the theorem needs 0 < rho_c <= rho_s, not {rho_c} and {rho_s}.")
    return max(8 * rho_s / rho_c, 1.0)


def theorem_rate(rho_c: float, rho_s: float) -> Schedule:
    """The theorem's step size [thm:FL_Convergence]: 2 / (rho_c (gamma + t))."""
    gamma = theorem_gamma(rho_c, rho_s)
    return lambda t: 2 / (rho_c * (gamma + t))


SCHEDULES = "RATE, theorem:RHO_C,RHO_S, cosine:RATE or step:RATE,EVERY,FACTOR"


def schedule(spec: str | float, rounds: int) -> Schedule:
    """Read a learning rate: a number, or a schedule over the rounds by name (`SCHEDULES`)."""
    kind, _, values = str(spec).rpartition(":")
    unreadable = SalfError(f"cannot read the learning rate {spec!r}: write {SCHEDULES}.")
    try:
        numbers = [float(number) for number in values.split(",")]
    except ValueError:
        raise unreadable from None
    for number in numbers:
        if not 0 < number < 1e30:  # beyond which single precision has no numbers
            raise SalfError(
                f"all numbers of a learning rate must be positive and below 1e30, not {number}."
            )
    match kind, numbers:
        case "", [rate]:
            return lambda t: rate
        case "theorem", [rho_c, rho_s]:
            return theorem_rate(rho_c, rho_s)
        case "cosine", [start]:
            return lambda t: start * (1 + cos(pi * (t - 1) / rounds)) / 2
        case "step", [start, every, factor]:
            return lambda t: start * factor ** ((t - 1) // every)
        case (("" | "theorem" | "cosine" | "step"), _):
            raise unreadable
    raise unknown("learning-rate schedule", kind, ["theorem", "cosine", "step"])


class Optimiser(ABC):
    """Turns averaged gradients into directions; slots are tensors kept for each parameter."""

    @property
    @abstractmethod
    def slots(self) -> Mapping[str, float]:
        """The names of the slots, and the value their entries start with."""

    @abstractmethod
    def directions(self, gradients: list[Tensor], *slots: list[Tensor]) -> list[Tensor]:
        """The directions of this step, one per parameter; changes the slots in place."""


@dataclass(frozen=True)
class SGD(Optimiser):
    """v <- m v + g, w <- w - lr v: equal to momentum on the users when all of them take part."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check("momentum", self.momentum)

    @property
    def slots(self) -> Mapping[str, float]:
        return {"velocity": 0.0} if self.momentum else {}

    def directions(self, gradients: list[Tensor], *slots: list[Tensor]) -> list[Tensor]:
        if not slots:
            return gradients
        import torch

        torch._foreach_mul_(slots[0], self.momentum)
        torch._foreach_add_(slots[0], gradients)
        return slots[0]


@dataclass(frozen=True)
class Adaptive(Optimiser):
    """m <- b1 m + (1 - b1) g, w <- w - lr m / (sqrt(v) + epsilon), with v_0 = epsilon^2.

    "Adaptive Federated Optimization" (Reddi et al.), Algorithm 2; there is no bias correction.
    """

    beta1: float = 0.9
    epsilon: float = 1e-3  # tau in the paper

    def __post_init__(self) -> None:
        _check("beta1", self.beta1)
        if not self.epsilon > 0:
            raise SalfError(f"epsilon must be positive, not {self.epsilon}.")

    @property
    def slots(self) -> Mapping[str, float]:
        return {"mean": 0.0, "variance": self.epsilon**2}

    def directions(self, gradients: list[Tensor], *slots: list[Tensor]) -> list[Tensor]:
        means, variances = slots
        for gradient, mean, variance in zip(gradients, means, variances, strict=True):
            mean.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
            self.accumulate(variance, gradient * gradient)
        both = zip(means, variances, strict=True)
        return [mean / (variance.sqrt() + self.epsilon) for mean, variance in both]

    @abstractmethod
    def accumulate(self, variance: Tensor, square: Tensor) -> None:
        """Take a squared gradient into v, in place."""


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v <- b2 v + (1 - b2) g^2."""

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("beta2", self.beta2)

    def accumulate(self, variance: Tensor, square: Tensor) -> None:
        variance.mul_(self.beta2).add_(square, alpha=1 - self.beta2)


class Yogi(Adam):
    """FedYogi: v <- v - (1 - b2) g^2 sign(v - g^2)."""

    def accumulate(self, variance: Tensor, square: Tensor) -> None:
        variance.addcmul_(square, (variance - square).sign(), value=self.beta2 - 1)


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v <- v + g^2, by default without a mean."""

    beta1: float = 0.0

    def accumulate(self, variance: Tensor, square: Tensor) -> None:
        variance.add_(square)


OPTIMISERS: dict[str, Any] = {"sgd": SGD, "adam": Adam, "yogi": Yogi, "adagrad": Adagrad}


def make_optimiser(name: str, settings: Mapping[str, float | None]) -> Optimiser:
    """The optimiser of this name, with those of the settings that are not None."""
    if name not in OPTIMISERS:
        raise unknown("server optimiser", name, OPTIMISERS)
    given = {key: value for key, value in settings.items() if value is not None}
    known = [each.name for each in fields(OPTIMISERS[name])]
    for key in given.keys() - set(known):
        raise SalfError(f"{key} is not a setting of server {name!r}, which has {', '.join(known)}.")
    optimiser: Optimiser = OPTIMISERS[name](**given)
    return optimiser


class Server:
    """Holds the model's tensors and applies the step of each round."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        schedule: Schedule,
        optimiser: Optimiser | None = None,
        client_lr: float | None = None,
    ) -> None:
        if client_lr is not None and not 0 < client_lr < 1e30:
            raise SalfError(f"client_lr must be positive, not {client_lr}.")
        self.weights = weights
        self.schedule = schedule
        self.optimiser = optimiser or SGD()
        self.client_lr = client_lr
        # What the optimiser keeps: a mapping from names to tensors for each of its slots.
        self.state: dict[str, dict[str, Tensor]] = {slot: {} for slot in self.optimiser.slots}

    def local_rate(self, t: int) -> float:
        """The rate of users' own steps on the model of round t."""
        return self.schedule(t) if self.client_lr is None else self.client_lr

    def apply(self, step: Step, t: int) -> None:
        """Take round t's step. Tensors that it does not name stay unchanged, bit for bit."""
        import torch

        with torch.no_grad():
            gradients: dict[str, Tensor] = {}
            for name, value in step.values.items():
                if self.weights[name].requires_grad:
                    gradients[name] = value if self.client_lr is None else value * self.client_lr
                else:  # a buffer: its mean difference is added as it is
                    self.weights[name].add_(value)
            if gradients:
                moves = self._moves(gradients, step.held)  # in few calls: small models feel each
                weights = [self.weights[name] for name in gradients]
                torch._foreach_add_(weights, moves, alpha=-self.schedule(t))

    def _moves(self, gradients: dict[str, Tensor], held: Mapping[str, Tensor]) -> list[Tensor]:
        """The optimiser's directions; entries that nobody holds stay, and keep their slots."""
        import torch

        for slot, start in self.optimiser.slots.items():
            for name, gradient in gradients.items():
                if name not in self.state[slot]:
                    self.state[slot][name] = torch.full_like(gradient, start)
        slots = list(self.state.values())
        partly = gradients.keys() & held.keys()
        before = {name: [kept[name].clone() for kept in slots] for name in partly}
        of_all = [[kept[name] for name in gradients] for kept in slots]
        found = self.optimiser.directions(list(gradients.values()), *of_all)
        moves = dict(zip(gradients, found, strict=True))
        for name, old in before.items():
            moves[name] = moves[name] * held[name]
            for kept, value in zip(slots, old, strict=True):
                kept[name].copy_(kept[name].where(held[name], value))
        return list(moves.values())

    def load_state(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue with what another server's optimiser kept."""
        for slot, kept in self.state.items():
            for name, tensor in groups.get(slot, {}).items():
                kept[name] = tensor.to(self.weights[name].device)


def _check(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise SalfError(f"{name} must be in [0, 1), not {value}.")
