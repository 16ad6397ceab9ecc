"""Deadlines by the bound: what minimises it, for a fleet and a budget of simulated seconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from salf.core.arrivals import Floats
from salf.core.schedules import Schedule
from salf.runs.constants import Estimates
from salf.runs.fleet_law import FleetLaw
from salf.theory import Federation
from salf.theory.planning import Deadlines, Problem, TradeOff, sharp_spread, theorem_spread

FORMS: Mapping[str, Callable[[Floats], float]] = {
    "theorem": theorem_spread,
    "sharp": sharp_spread,
}


@dataclass(frozen=True, eq=False)
class Offer:
    """What minimises one form of the bound."""

    form: str
    constant: Deadlines  # with the batches of the config
    schedule: Deadlines
    batch_size: int  # of the schedule
    problem: Problem  # with the batches of the config

    @property
    def deadline(self) -> float:
        """The best constant T_max."""
        return float(self.constant.deadlines[0])


def best_offer(
    form: str,
    batch_size: int,
    laws: Mapping[int, FleetLaw],
    estimates: Estimates,
    budget: float,
    rate: Schedule | None,
) -> Offer:
    """The best constant deadline, and the best schedule over all sizes of the batches."""
    problems = {
        size: _problem(form, law, size / batch_size, estimates, budget, rate)
        for size, law in laws.items()
    }
    # Batches that fit the deadline fit the first one of a run, so there they have to be constant.
    fits = any(law.fits for law in laws.values())
    schedules = {
        size: problem.best_constant() if fits else problem.best_schedule()
        for size, problem in problems.items()
    }
    best = min(schedules, key=lambda size: schedules[size].bound)
    own = problems[batch_size]
    return Offer(form, own.best_constant(), schedules[best], best, own)


def _problem(
    form: str,
    law: FleetLaw,
    scale: float,
    estimates: Estimates,
    budget: float,
    rate: Schedule | None,
) -> Problem:
    federation = Federation(len(law.users), law.timing.layers)
    rows = law.rows(budget)
    constants = estimates.constants(rows, scale)

    def spread(deadline: float) -> float:
        found = FORMS[form](law.at(deadline)[0])
        if not law.fits or not constants.G2:
            return found
        # Batches that fit a shorter deadline are smaller and noisier: B and G^2 are larger.
        own = law.rows(deadline)
        smaller = estimates.constants(own, scale * float((1 / rows).mean() / (1 / own).mean()))
        more = smaller.B(federation) - constants.B(federation)
        return (smaller.G2 * found + more) / constants.G2

    return Problem(
        federation,
        constants,
        estimates.distance2,
        TradeOff.of(spread, law.seconds, budget),
        budget,
        rate,
    )
