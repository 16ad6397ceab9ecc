"""Deadlines chosen for a fleet: by the theorem's bound, and by short runs of the simulator."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import version
from math import inf, isfinite, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from salf.arrivals import Floats, Ints
from salf.data import load
from salf.draws import Keyed
from salf.errors import SalfError, TrainingDiverged, unknown
from salf.evaluation import evaluate
from salf.experiments.config import Config
from salf.experiments.constants import GIVEN, Estimates, estimate
from salf.experiments.pool import Done, Job, OnProgress, Progress
from salf.experiments.run import complete
from salf.experiments.training import Training, assemble
from salf.files import temporary_folder, write_whole
from salf.fleet import named as fleets
from salf.fleet.timing import Round, Timing, equal_time
from salf.fleet.world import OnFleet
from salf.models import build
from salf.schedules import Schedule
from salf.theory import Constants, Federation
from salf.theory.planning import (
    Deadlines,
    Problem,
    TradeOff,
    count_law,
    first_time,
    sharp_spread,
    theorem_spread,
)

Make = Callable[[Config], Training]
Run = Callable[[Mapping[str, Job]], Done]
Form = Literal["theorem", "sharp"]
FORMS: Mapping[str, Callable[[Floats], float]] = {
    "theorem": theorem_spread,
    "sharp": sharp_spread,
}

SCALES = (0.5, 0.625, 0.75, 0.875, 1.0)  # m: of the batch size
MOST_USERS = 500  # of a larger cohort, so many are looked at, evenly spaced in speed
DRAWN = 64  # rounds that are drawn to know how long they take
STARTS = 8  # times of the budget at which devices that come and go are looked at
CURVE = 60  # points of the curve
LEAST_REACH, MOST_REACH = 0.1, 0.97  # the search goes from the one to the other
FEWEST_ROUNDS = 5  # of a run of the search
ROUNDING = 1e-6  # of the number of rounds: the seconds of a round are interpolated


class FleetLaw:
    """How many users reach each layer by a deadline, and how long rounds take, on a fleet."""

    def __init__(self, timing: Timing, cohort: int, budget: float, fits: int = 0) -> None:
        """With `fits`, batches of up to so many rows fit the deadline (`--batches equal-time`)."""
        self.timing, self.fits = timing, fits
        everybody = np.arange(timing.users)
        order = np.argsort(timing.expected(everybody), kind="stable")
        count = min(cohort, MOST_USERS)
        # A cohort is like as many users evenly spaced in speed.
        places = ((np.arange(count) + 0.5) * timing.users / count).astype(np.int64)
        self.users: Ints = np.sort(order[places])
        always = timing.devices.availability.always
        self._starts = [0.0] if always else np.linspace(0, budget, STARTS, endpoint=False).tolist()
        self.at = lru_cache(maxsize=None)(self._at)
        self.seconds = lru_cache(maxsize=None)(self._seconds)
        self._of_rows: dict[bytes, Timing] = {}
        self._rounds = lru_cache(maxsize=4)(self._drawn)  # deadlines are looked at in order

    def _at(self, deadline: float) -> tuple[Floats, float]:
        """The law of |U^l|, [L, U+1], and the mean reach."""
        timing = self._timing(deadline)
        reach = [timing.reach(self.users, start, deadline) for start in self._starts]
        law = [
            self._count_law(timing, chances, start, deadline)
            for chances, start in zip(reach, self._starts, strict=True)
        ]
        return np.asarray(np.mean(law, axis=0)), float(np.mean(reach))

    def _count_law(self, timing: Timing, reach: Floats, start: float, deadline: float) -> Floats:
        together = timing.reached_together(self.users, start, deadline)
        if together is None:
            return count_law(reach)
        # Users whose times were recorded together are fast and slow together.
        return np.array([(together == k).mean(axis=0) for k in range(len(self.users) + 1)]).T

    def rows(self, deadline: float) -> Ints:
        """How many rows the users' batches have."""
        return np.rint(self._timing(deadline).rows(self.users)).astype(np.int64)

    def _seconds(self, deadline: float) -> float:
        """How long a round takes: until the deadline, or until all users are done."""
        timing = self._timing(deadline)
        took = [
            timing.closes(times, times.reached(deadline), deadline, draws)
            for draws, times in self._rounds(timing)
        ]
        return float(np.mean(took))

    def _drawn(self, timing: Timing) -> list[tuple[Keyed, Round]]:
        starts = self._starts * -(-DRAWN // len(self._starts))
        draws = [Keyed(0, t) for t in range(1, len(starts) + 1)]
        return [
            (each, timing.round(each, self.users, start))
            for each, start in zip(draws, starts, strict=True)
        ]

    def _timing(self, deadline: float) -> Timing:
        """With the batches that fit the deadline."""
        if not self.fits:
            return self.timing
        timing, everybody = self.timing, np.arange(self.timing.users)
        steps = int(timing.planned(self.users[:1])[0])
        fit = equal_time(timing.devices, timing.cost, self.fits, steps, deadline)
        # Those of the longest deadline are as large as the users' data allow.
        rows = np.minimum(fit, timing.rows(everybody))
        made = Timing(timing.devices, timing.cost, lambda users: rows[users], timing.planned)
        return self._of_rows.setdefault(rows.tobytes(), made)


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


@dataclass(frozen=True)
class Tried:
    """What runs with one deadline came to: an accuracy per seed, None where training diverged."""

    deadline: float | None  # None for the schedule
    accuracies: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The accuracies of the runs that did not diverge."""
        return [each for each in self.accuracies if each is not None]

    @property
    def mean(self) -> float:
        """The mean accuracy; 0 if all runs diverged."""
        return float(np.mean(self.known)) if self.known else 0.0


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
        first = min(*ends, *(o.problem.trade.deadlines[0] for o in self.offers.values()))
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
        records, text = self.curve(), io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()


def schedule_csv(deadlines: Sequence[float]) -> str:
    """A line per round with its deadline, as `--deadline FILE.csv` reads it."""
    lines = (f"{t},{deadline!r}\n" for t, deadline in enumerate(deadlines, 1))
    return "round,deadline\n" + "".join(lines)


def one_by_one(jobs: Mapping[str, Job], on_progress: OnProgress | None = None) -> Done:
    """Do the jobs of a search in this process."""
    done, before, total = Done(), 0.0, sum(job.work for job in jobs.values())
    for name, job in jobs.items():

        def progress(share: float, before: float = before, work: float = job.work) -> None:
            if on_progress is not None:
                on_progress(before + share * work, total)

        try:
            done.results[name] = job.do(progress)
        except TrainingDiverged as error:
            done.failures[name] = str(error)
        before += job.work
    return done


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
        form: _offer(form, config.batch_size, laws, estimates, budget, rate) for form in FORMS
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
        raise SalfError("a plan needs a fleet, such as --fleet phones.")
    if config.seconds is None:
        raise SalfError("a plan needs a budget of simulated seconds, such as --seconds 600.")
    if not (method := config.make_method()).has_deadline:
        why = "waits for all users" if method.waits else "has no deadline"
        raise SalfError(
            f"{method.name} {why}, so there is no deadline to plan: use another method, such as "
            "--method salf."
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
        raise SalfError("a plan needs a fleet, such as --fleet phones.")
    fits = config.batch_size if config.equal_time() else 0
    return FleetLaw(world.timing, config.cohort_size(), config.seconds, fits)


def _offer(
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


def search_grid(law: FleetLaw, budget: float, points: int) -> list[float]:
    """Deadlines from one that few users reach anything by to one that nearly all finish by."""

    def longer(reach: float) -> float:
        return first_time(lambda T: law.at(T)[1] >= reach, budget)

    last = min(longer(MOST_REACH), budget / FEWEST_ROUNDS)
    first = min(longer(LEAST_REACH), last / 2)
    return [float(f"{each:.3g}") for each in np.geomspace(first, last, points)]


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
    rounds: dict[float | None, float] = {T: planned.rounds(T) for T in grid}
    with temporary_folder("plan") as folder:
        write_whole(folder / "plan.csv", planned.schedule_csv())
        follow = base.changed(
            deadline=str(folder / "plan.csv"), batch_size=planned.offer.batch_size
        )
        configs: dict[float | None, Config] = {T: base.changed(deadline=T) for T in grid}
        configs[None], rounds[None] = follow, len(planned.schedule)
        names = {(T, seed): f"{T or 'schedule'}-{seed}" for T in configs for seed in seeds}
        done = run(
            {
                name: Job(partial(accuracy_at_end, make, keep, config), rounds[T])
                for (T, seed), name in names.items()
                for config in [configs[T].changed(seed=seed)]
            }
        )
    tried = {
        T: Tried(T, tuple(done.results.get(names[T, seed]) for seed in seeds)) for T in configs
    }
    return replace(planned, followed=tried.pop(None), tried=list(tried.values()))


def accuracy_at_end(make: Make, keep: Path | None, config: Config, progress: Progress) -> float:
    """Train until the budget is spent, and measure the accuracy on held-out data.

    With a folder to `keep` it in, it is read from there if it was measured before.
    """
    if keep is None:
        return _accuracy_at_end(make, config, progress)
    file = keep / f"{_digest(config)}.txt"
    if not file.exists():
        write_whole(file, f"{_accuracy_at_end(make, config, progress)!r}\n")
    return float(file.read_text(encoding="utf-8"))


def _digest(config: Config) -> str:
    """What tells a run from others: its settings, what is in its files, the version of salf."""
    table = complete(config, here=False).table()
    if "deadline" in table["files"]:
        table["deadline"] = None  # the file of a schedule has another name each time
    text = json.dumps([version("salf"), table], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _accuracy_at_end(make: Make, config: Config, progress: Progress) -> float:
    assert config.seconds is not None
    torch.set_num_threads(config.threads or 1)
    training = make(config)
    for row in training.rows(0, config.seconds):
        progress((row.clock or 0.0) / config.seconds)
    samples = training.validation or training.test
    measured = {} if samples is None else evaluate(training.simulation.engine, samples)
    if "accuracy" not in measured:
        raise SalfError(
            "the search needs held-out data to compare accuracies, and there are none: use the "
            "bound alone, with seeds=0."
        )
    return measured["accuracy"]


def from_config(config: Config, fleet_seed: int = 0) -> Training:
    """The federation of a config, on the same devices whatever its seed is."""
    data = load(config.data, Path(config.data_dir) if config.data_dir else None)
    model = build(config.model, data.train.shape, data.classes, config.seed)
    fleet = fleets.parse(config.fleet, config.users, fleet_seed, config.availability)
    return assemble(config, model, data, fleet=fleet, model_name=config.model)


def lost(best: Tried, other: Tried) -> tuple[float, float]:
    """How much less accurate another deadline is, seed by seed: the mean and its standard error."""
    pairs = zip(best.accuracies, other.accuracies, strict=True)
    off = [a - b for a, b in pairs if a is not None and b is not None]
    if not off:
        return best.mean - other.mean, inf
    return float(np.mean(off)), float(np.std(off, ddof=1) / sqrt(len(off))) if len(off) > 1 else 0.0


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
