"""Deadlines chosen for a fleet: by the theorem's bound, and by short runs of the simulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from salf.common.errors import SalfError
from salf.common.files import csv_of, temporary_folder, write_whole
from salf.core.arrivals import Floats
from salf.core.server import Schedule, schedule
from salf.data.sampling import Batches
from salf.methods import Method
from salf.problem import Problem
from salf.runs.config import Config
from salf.runs.constants import Estimates, estimate
from salf.runs.federation import Given, training_of
from salf.runs.fleet_law import FleetLaw
from salf.runs.on_fleet import fleet_world
from salf.runs.plan_options import PlanOptions
from salf.runs.pool import Finished, Job, run_here
from salf.runs.search import Tried, accuracy_at_end, lost, search, search_grid
from salf.runs.training import Training
from salf.theory import Constants, Federation
from salf.theory.planning import BoundProblem, Deadlines, TradeOff, sharp_spread, theorem_spread
from salf.worlds.fleet import named as fleets

FORMS: Mapping[str, Callable[[Floats], float]] = {
    "theorem": theorem_spread,
    "sharp": sharp_spread,
}
SCALES = (0.5, 0.625, 0.75, 0.875, 1.0)  # m: of the batch size
CURVE = 60  # points of the curve
ROUNDING = 1e-6  # of the number of rounds: the seconds of a round are interpolated


@dataclass(frozen=True, eq=False)
class Offer:
    """The deadlines that minimise one form of the bound."""

    constant: Deadlines  # with the batches of the config
    schedule: Deadlines
    batch_size: int  # of the schedule
    problem: BoundProblem  # with the batches of the config

    @property
    def deadline(self) -> float:
        """The best constant T_max."""
        return float(self.constant.deadlines[0])


@dataclass(frozen=True, eq=False)
class Planned:
    """Deadlines by the bound and by simulation, and how far the two disagree."""

    config: Config
    budget: float
    form: str  # of the bound that the schedule minimises
    estimates: Estimates
    offers: Mapping[str, Offer]  # by the form of the bound
    law: FleetLaw = field(repr=False)
    tried: Sequence[Tried] = ()  # in the order of the deadlines
    followed: Tried | None = None  # the schedule, with its batch size

    @property
    def offer(self) -> Offer:
        return self.offers[self.form]

    @property
    def constants(self) -> Constants:
        return self.offer.problem.constants

    @property
    def schedule(self) -> tuple[float, ...]:
        """T_1..T_R."""
        return tuple(self.offer.schedule.deadlines.tolist())

    @property
    def best(self) -> Tried | None:
        """The deadline with the highest mean accuracy in the search."""
        return max(self.tried, key=lambda each: each.mean, default=None)

    def rounds(self, deadline: float) -> int:
        """How many rounds of this deadline fit in the budget."""
        return int(self.budget / self.law.seconds(deadline) * (1 + ROUNDING))

    def alike(self) -> list[float]:
        """The deadlines whose accuracy is within one standard error of the best one's."""
        best, found = self.best, []
        for each in self.tried:
            off, error = lost(best or each, each)
            if each is best or (each.known and off <= error):
                found.append(each.deadline)
        return found

    def at(self, deadline: float) -> Tried | None:
        return next((each for each in self.tried if each.deadline == deadline), None)

    def rank_correlation(self, form: str) -> float:
        """Spearman's, of a low bound and a high accuracy over the deadlines; NaN if one is flat."""
        from scipy.stats import spearmanr  # takes half a second

        low = [-self.offers[form].problem.bound_at(each.deadline) for each in self.tried]
        accuracies = [each.mean for each in self.tried]
        if min(len(set(low)), len(set(accuracies))) < 2:
            return float("nan")
        return float(spearmanr(low, accuracies).statistic)

    def curve(self) -> list[dict[str, Any]]:
        """The trade-off: a record per deadline, those of the search with their accuracies."""
        offered = [offer.deadline for offer in self.offers.values()]
        ends = [*(each.deadline for each in self.tried), *offered]
        shortest = min(offer.problem.trade.deadlines[0] for offer in self.offers.values())
        first = min(*ends, max(shortest, min(offered) / 4))
        last = min(self.budget, max(*ends, 4 * max(offered)))
        return [
            self._record(T) for T in sorted({*np.geomspace(first, last, CURVE).tolist(), *ends})
        ]

    def _record(self, deadline: float) -> dict[str, Any]:
        counts, reach = self.law.at(deadline)
        found = self.at(deadline)
        accuracies = found.known if found else []
        record: dict[str, Any] = {
            "deadline": deadline,
            "rounds": self.rounds(deadline),
            "reach": reach,
            "p_1": float(counts[0, 0]),
        }
        for form, offer in self.offers.items():
            bound = offer.problem.bound_at(deadline)
            record[f"bound_{form}"] = bound if isfinite(bound) else None
        record["accuracy"] = float(np.mean(accuracies)) if accuracies else None
        record["lowest"] = min(accuracies, default=None)
        record["highest"] = max(accuracies, default=None)
        return record

    def schedule_csv(self) -> str:
        """The schedule, for `--deadline plan.csv`."""
        lines = (f"{t},{deadline!r}\n" for t, deadline in enumerate(self.schedule, 1))
        return "round,deadline\n" + "".join(lines)

    def curve_csv(self) -> str:
        return csv_of(self.curve())


def plan(
    config: Config,
    problem_of: Callable[[Config], Problem],
    options: PlanOptions | None = None,
    given: Given | None = None,
    run: Callable[[Mapping[str, Job]], Finished] = run_here,
    keep: Path | None = None,
) -> Planned:
    """Plan for a config with a fleet and a budget of seconds.

    `run` does the jobs of the search. Their results are kept in the folder `keep`, if there is one,
    so that a search that was interrupted continues.
    """
    options, given = options or PlanOptions(), given or Given()
    method = given.method or config.make_method()
    budget = _budget(config, method, options.deadlines)
    # The same devices for every seed.
    if given.fleet is None:
        fleet = fleets.parse(config.fleet, config.users, 0, config.availability)
    else:
        fleet = given.fleet.available(config.availability)
    # No evaluations on the way, and any deadline, to see the fleet's times.
    base = config.changed(rounds=0, eval_seconds=2 * budget, deadline=budget, seed=0)
    problem = problem_of(base)
    fits, laws = base.batches_for(method) == "equal-time", {}
    for size in dict.fromkeys(max(1, round(scale * config.batch_size)) for scale in SCALES):
        world, rows, _ = fleet_world(base.changed(batch_size=size), problem, method, fleet)
        laws[size] = FleetLaw(world.timing, config.cohort_size(), budget, size if fits else 0)
    law, batches = laws[size], Batches(problem.users_data, rows, config.local_epochs)
    estimates = estimate(problem, batches, options.constants)
    rate = given.lr or schedule(config.lr, 1) if options.rates == "run" else None
    offers = {form: _offer(form, laws, size, estimates, budget, rate) for form in FORMS}
    planned = Planned(config, budget, options.bound, estimates, offers, law)
    if not options.seeds:
        return planned
    grid = list(options.deadlines) or search_grid(law, budget, options.points)
    # What the bounds offer is tried too, to know what following them costs.
    grid = sorted({*grid, *(offer.deadline for offer in offers.values())})
    trials = {T: (base.changed(deadline=T), planned.rounds(T)) for T in grid}
    measure = partial(
        accuracy_at_end, partial(_training, problem_of, replace(given, fleet=fleet)), keep
    )
    with temporary_folder("plan") as folder:
        write_whole(file := folder / "plan.csv", planned.schedule_csv())
        follow = base.changed(deadline=str(file), batch_size=planned.offer.batch_size)
        trials[0.0] = follow, len(planned.schedule)
        *tried, followed = search(trials, options.seeds, measure, run)
    return replace(planned, followed=followed, tried=tried)


def _budget(config: Config, method: Method, deadlines: Sequence[float]) -> float:
    """The budget, if all is there that a plan needs."""
    if not config.fleet:
        raise SalfError("a plan needs a fleet, such as fleet='phones'.")
    if config.seconds is None:
        raise SalfError("a plan needs a budget of simulated seconds, such as seconds=600.")
    if not method.asks.deadline:
        why = "waits for all users" if method.asks.waits else "has no deadline"
        raise SalfError(
            f"{method.name} {why}, so there is no deadline to plan: use another method, such as "
            "method='salf'."
        )
    for deadline in deadlines:
        if not 0 < deadline <= config.seconds:
            raise SalfError(
                f"a deadline to try must be above 0 and within the budget of {config.seconds:g} s, "
                f"not {deadline:g}."
            )
    return config.seconds


def _training(problem_of: Callable[[Config], Problem], given: Given, config: Config) -> Training:
    return training_of(config, problem_of(config), given)


def _offer(
    form: str,
    laws: Mapping[int, FleetLaw],
    batch_size: int,
    estimates: Estimates,
    budget: float,
    rate: Schedule | None,
) -> Offer:
    """The best constant deadline, and the best schedule over all sizes of the batches."""
    problems, plans = {}, {}
    for size, law in laws.items():
        scale, federation = size / batch_size, Federation(len(law.users), law.timing.layers)
        trade = TradeOff.of(_spread(form, law, scale, estimates, budget), law.seconds, budget)
        constants = estimates.constants(law.rows(budget), scale)
        problem = BoundProblem(federation, constants, estimates.distance2, trade, budget, rate)
        # Batches that fit the deadline fit the first one of a run, so there they are constant.
        plans[size] = problem.best_constant() if law.fits else problem.best_schedule()
        problems[size] = problem
    best, own = min(plans, key=lambda size: plans[size].bound), problems[batch_size]
    return Offer(own.best_constant(), plans[best], best, own)


def _spread(
    form: str, law: FleetLaw, scale: float, estimates: Estimates, budget: float
) -> Callable[[float], float]:
    """C / G^2 of a deadline, with what smaller batches add to it."""
    federation, rows = Federation(len(law.users), law.timing.layers), law.rows(budget)
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

    return spread
