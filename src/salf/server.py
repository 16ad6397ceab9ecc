"""The server's step: learning rate, momentum, and a layer nobody reached left as it is."""

from collections.abc import Callable, Mapping
from math import cos, pi

import torch
from torch import Tensor

from salf.aggregate import Step
from salf.errors import SalfError, unknown

# The learning rate of round t, t = 1, 2, ...
Schedule = Callable[[int], float]


class Server:
    """Holds the model's tensors and moves them by what a round found.

    Momentum is the server's: v <- m v + g, w <- w - eta v. When all users take part it equals
    the users' own momentum, because both are linear in the gradients.
    """

    def __init__(self, weights: Mapping[str, Tensor], schedule: Schedule, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise SalfError(f"momentum must be in [0, 1), not {momentum}.")
        self.weights = weights
        self.schedule = schedule
        self.momentum = momentum
        self.velocity: dict[str, Tensor] = {}

    @torch.no_grad()
    def apply(self, step: Step, t: int) -> None:
        """Take round t's step. What is not named in it stays bit-identical."""
        rate = self.schedule(t)
        for name, value in step.values.items():
            weight = self.weights[name]
            if not weight.requires_grad:  # a buffer: its mean difference is added as it is
                weight.add_(value)
                continue
            if self.momentum:
                value = self._momentum(name, value, step.held.get(name))
            if name in step.held:
                value = value * step.held[name]
            weight.add_(value, alpha=-rate)

    def _momentum(self, name: str, gradient: Tensor, held: Tensor | None) -> Tensor:
        velocity = self.velocity.get(name)
        if velocity is None:
            velocity = self.velocity[name] = torch.zeros_like(gradient)
        if held is None:
            return velocity.mul_(self.momentum).add_(gradient)
        moved = velocity * self.momentum + gradient
        return velocity.copy_(torch.where(held, moved, velocity))


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
    kind, _, rest = str(spec).partition(":")
    try:
        if not rest:
            rate = _positive(float(kind))
            return lambda t: rate
        numbers = [_positive(float(number)) for number in rest.split(",")]
    except ValueError as error:
        if isinstance(error, SalfError):
            raise
        raise SalfError(f"cannot read the learning rate {spec!r}; write {SCHEDULES}.") from None
    match kind, numbers:
        case "theorem", [rho_c, rho_s]:
            return theorem_rate(rho_c, rho_s)
        case "cosine", [start]:
            return lambda t: start * (1 + cos(pi * (t - 1) / rounds)) / 2
        case "step", [start, every, factor]:
            return lambda t: start * factor ** ((t - 1) // every)
        case (("theorem" | "cosine" | "step"), _):
            raise SalfError(f"cannot read the learning rate {spec!r}; write {SCHEDULES}.")
    raise unknown("learning-rate schedule", kind, ["theorem", "cosine", "step"])


def _positive(number: float) -> float:
    if not 0 < number < 1e30:  # beyond which single precision has no numbers
        raise SalfError(
            f"a learning rate and its numbers must be below 1e30 and positive, not {number}."
        )
    return number
