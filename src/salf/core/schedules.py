"""Learning rates: a number, or a schedule over the rounds."""

from collections.abc import Callable
from math import cos, pi

from salf.common.errors import SalfError, unknown

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
    kind, _, rest = str(spec).partition(":")
    unreadable = SalfError(f"cannot read the learning rate {spec!r}: write {SCHEDULES}.")
    try:
        numbers = [float(number) for number in (rest or kind).split(",")]
    except ValueError:
        raise unreadable from None
    for number in numbers:
        if not 0 < number < 1e30:  # beyond which single precision has no numbers
            raise SalfError(
                f"all numbers of a learning rate must be positive and below 1e30, not {number}."
            )
    match kind if rest else "", numbers:
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
