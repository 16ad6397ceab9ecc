"""Deadlines chosen for a fleet: by the theorem's bound, and by short runs of the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from salf.common.errors import SalfError, unknown
from salf.common.files import csv_of, temporary_folder, write_whole
from salf.core.arrivals import Floats
from salf.runs import federation
from salf.runs.config import Config
from salf.runs.constants import GIVEN, Estimates, estimate
from salf.runs.fleet_law import FleetLaw
from salf.runs.offers import FORMS, Offer, best_offer
from salf.runs.search import (
    Make,
    Run,
    Trial,
    Tried,
    lost,
    one_by_one,
    search,
    search_grid,
)
from salf.runs.training import Training
from salf.theory import Constants
from salf.worlds.fleet import named as fleets
from salf.worlds.fleet.world import OnFleet

SCALES = (0.5, 0.625, 0.75, 0.875, 1.0)  # m: of the batch size
CURVE = 60  # points of the curve
ROUNDING = 1e-6  # of the number of rounds: the seconds of a round are interpolated


@dataclass(frozen=True, eq=False)
class Planned:
    """Deadlines by the bound and by simulation, and how far the two disagree."""

    config: Config
    budget: float
    form: str  # whose schedule is the plan
    estimates: Estimates
    offers: Mapping[str, Offer]
    law: FleetLaw = field(repr=False)
    tried: Sequence[Tried] = ()  # in the order of the deadlines
    followed: Tried | None = None  # the schedule, with its batch size

    @property
    def constants(self) -> Constants:
        """Those of the bound, for batches as the config has them."""
        return self.offer.problem.constants

    def rounds(self, deadline: float) -> int:
        """How many rounds of this deadline fit in the budget."""
        return int(self.budget / self.law.seconds(deadline) * (1 + ROUNDING))

    @property
    def offer(self) -> Offer:
        """What the bound offers."""
        return self.offers[self.form]

    @property
    def schedule(self) -> tuple[float, ...]:
        """T_1..T_R."""
        return tuple(self.offer.schedule.deadlines.tolist())

    @property
    def best(self) -> Tried | None:
        """The deadline with the highest mean accuracy in the search."""
        return max(self.tried, key=lambda each: each.mean, default=None)

    def alike(self) -> list[float]:
        """The deadlines whose accuracy is within one standard error of the best one's."""
        best = self.best
        if best is None:
            return []
        return [
            float(each.deadline or 0)
            for each in self.tried
            if each is best or (each.known and lost(best, each)[0] <= lost(best, each)[1])
        ]

    def at(self, deadline: float) -> Tried | None:
        """The runs with this deadline."""
        return next((each for each in self.tried if each.deadline == deadline), None)

    def rank_correlation(self, form: str) -> float:
        """Spearman's, of the accuracy and the bound's negative over the deadlines; NaN if flat."""
        bounds = [self.offers[form].problem.bound_at(each.deadline or 0) for each in self.tried]
        return spearman([-each for each in bounds], [each.mean for each in self.tried])

    def curve(self) -> list[dict[str, Any]]:
        """The trade-off: a record per deadline, those of the search with their accuracies."""
        searched = [float(each.deadline or 0) for each in self.tried]
        offered = [offer.deadline for offer in self.offers.values()]
        ends = [*searched, *offered]
        shortest = min(o.problem.trade.deadlines[0] for o in self.offers.values())
        first = min(*ends, max(shortest, min(offered) / 4))
        last = min(self.budget, max(*ends, 4 * max(offered)))
        points = sorted({*np.geomspace(first, last, CURVE).tolist(), *ends})
        records: list[dict[str, Any]] = []
        for deadline in points:
            counts, reach = self.law.at(deadline)
            found = self.at(deadline)
            accuracies = found.known if found else []
            records.append(
                {
                    "deadline": deadline,
                    "rounds": self.rounds(deadline),
                    "reach": reach,
                    "p_1": float(counts[0, 0]),
                    **{
                        f"bound_{form}": _finite(offer.problem.bound_at(deadline))
                        for form, offer in self.offers.items()
                    },
                    "accuracy": float(np.mean(accuracies)) if accuracies else None,
                    "lowest": min(accuracies, default=None),
                    "highest": max(accuracies, default=None),
                }
            )
        return records

    def schedule_csv(self) -> str:
        """plan.csv, for `--deadline plan.csv`."""
        return schedule_csv(self.schedule)

    def curve_csv(self) -> str:
        """curve.csv: the trade-off."""
        return csv_of(self.curve())


def schedule_csv(deadlines: Sequence[float]) -> str:
    """A line per round with its deadline, as `--deadline FILE.csv` reads it."""
    lines = (f"{t},{deadline!r}\n" for t, deadline in enumerate(deadlines, 1))
    return "round,deadline\n" + "".join(lines)


def plan(
    config: Config,
    make: Make,
    *,
    form: str = "theorem",
    rates: str = "theorem",
    given: Mapping[str, float] | None = None,
    seeds: int = 2,
    points: int = 8,
    deadlines: Sequence[float] = (),
    run: Run = one_by_one,
    keep: Path | None = None,
) -> Planned:
    """Plan for a config with a fleet and a budget of seconds; `make` makes its federation.

    `form` says which bound: the theorem's, or the sharp one, before its proof drops |U^l|. `rates`
    are the theorem's step sizes or those of the run. `given` are constants that are known, the
    others are estimated. The search runs every deadline with every seed; without seeds there is
    none. `run` does its jobs. What a job found is kept in the folder `keep`, if there is one, so
    that a search that was interrupted does not begin again.
    """
    budget = _checked(config, form, rates, given or {}, seeds, points, deadlines)
    # No evaluations on the way, and any deadline, to see the fleet's times.
    base = config.changed(rounds=0, eval_seconds=2 * budget, deadline=budget, seed=0)
    training = make(base)
    estimates = estimate(training, given or {})
    rate = training.simulation.server.schedule if rates == "run" else None
    sizes = dict.fromkeys(max(1, round(scale * config.batch_size)) for scale in SCALES)
    laws = {
        size: _law(training if size == config.batch_size else make(changed), changed)
        for size in sizes
        for changed in [base.changed(batch_size=size)]
    }
    offers = {
        form: best_offer(form, config.batch_size, laws, estimates, budget, rate) for form in FORMS
    }
    planned = Planned(config, budget, form, estimates, offers, laws[config.batch_size])
    if not seeds:
        return planned
    grid = list(deadlines) or search_grid(planned.law, budget, points)
    # What the bounds offer is tried too, to know what following them costs.
    grid = sorted({*grid, *(offer.deadline for offer in offers.values())})
    return _searched(planned, base, make, grid, range(seeds), run, keep)


def _checked(
    config: Config,
    form: str,
    rates: str,
    given: Mapping[str, float],
    seeds: int,
    points: int,
    deadlines: Sequence[float],
) -> float:
    """The budget, if all is there that a plan needs."""
    if not config.fleet:
        raise SalfError("a plan needs a fleet, such as fleet='phones'.")
    if config.seconds is None:
        raise SalfError("a plan needs a budget of simulated seconds, such as seconds=600.")
    if not (method := config.make_method()).asks.deadline:
        why = "waits for all users" if method.asks.waits else "has no deadline"
        raise SalfError(
            f"{method.name} {why}, so there is no deadline to plan: use another method, such as "
            "method='salf'."
        )
    if form not in FORMS:
        raise unknown("bound", form, FORMS)
    if rates not in ("theorem", "run"):
        raise unknown("choice of rates", rates, ("theorem", "run"))
    for name in given:
        if name not in GIVEN:
            raise unknown("constant", name, GIVEN)
    if seeds < 0 or points < 2:
        raise SalfError("the search needs at least 2 deadlines, and 0 or more seeds.")
    for deadline in deadlines:
        if not 0 < deadline <= config.seconds:
            raise SalfError(
                f"a deadline to try must be above 0 and within the budget of {config.seconds:g} s, "
                f"not {deadline:g}."
            )
    return config.seconds


def _law(training: Training, config: Config) -> FleetLaw:
    world = training.simulation.world
    if not isinstance(world, OnFleet) or config.seconds is None:
        raise SalfError("a plan needs a fleet, such as fleet='phones'.")
    fits = config.batch_size if config.equal_time() else 0
    return FleetLaw(world.timing, config.cohort_size(), config.seconds, fits)


def _searched(
    planned: Planned,
    base: Config,
    make: Make,
    grid: Sequence[float],
    seeds: range,
    run: Run,
    keep: Path | None,
) -> Planned:
    """The plan with the accuracy that each deadline, and the schedule, come to."""
    trials: dict[float | None, Trial] = {
        T: Trial(base.changed(deadline=T), planned.rounds(T)) for T in grid
    }
    with temporary_folder("plan") as folder:
        write_whole(folder / "plan.csv", planned.schedule_csv())
        follow = base.changed(
            deadline=str(folder / "plan.csv"), batch_size=planned.offer.batch_size
        )
        trials[None] = Trial(follow, len(planned.schedule))
        tried = search(trials, seeds, make, run, keep)
    return replace(planned, followed=tried.pop(None), tried=list(tried.values()))


def on_same_devices(config: Config) -> Training:
    """The federation of a config, on the same devices whatever its seed is."""
    fleet = fleets.parse(config.fleet, config.users, 0, config.availability)
    return federation.from_config(config, fleet=fleet)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The correlation of ranks, equal values sharing theirs; NaN if all values of one are equal."""
    ranks = [_ranks(each) for each in (first, second)]
    if len(first) < 2 or any(np.ptp(each) == 0 for each in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Sequence[float]) -> Floats:
    _, place, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
