"""What to run on a fleet: a race of methods, deadlines, batches, local steps and compressions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from salf.common.errors import SalfError
from salf.common.files import csv_text, write_whole
from salf.core.arrivals import Floats, Ints
from salf.core.server import schedule
from salf.data import Partitioned
from salf.data.sampling import Batches
from salf.methods import asks
from salf.problem import Problem
from salf.runs.compare import SHARE, check_target
from salf.runs.config import Config
from salf.runs.estimates import Estimates, FleetLaw, estimate
from salf.runs.federation import fleet_world
from salf.runs.pool import Finished, Job
from salf.runs.run import complete
from salf.runs.search import Candidate, Race, leaders
from salf.runs.settings import typed
from salf.runs.training import History
from salf.theory import Federation
from salf.theory.planning import DeadlineBound, theorem_spread
from salf.worlds.fleet.devices import Fleet

METHODS = ("salf", "drop", "fedavg", "salf-recall")
SHARES = (0.1, 0.4, 0.7, 0.95)  # of the users, who are done by the deadlines tried
SEVERAL = 4  # local steps
COMPRESSIONS = ("fp16", "qsgd:4")
RATES = (0.5, 2.0)  # times the learning rate of the best of each method, and
NEAR = (0.8, 1.25)  # times the deadline of the best of all, which are tried then
CLIMBS = 3  # times at most
PARTS = (0.4, 0.7, 1.0)  # of the budget, after which the slower half gives up
FINALISTS = 6  # that run with all seeds, besides the best of each method
FEWEST = 5  # rounds within the budget
PILOT, DOUBLINGS = 8, 10  # rounds of the shortest runs that look for a target; and longer ones
AFTER = 2.5  # times the seconds in which the first reached the target, runs end
EVALUATIONS = 40
SCALES = (0.5, 0.75, 1.0)  # m in ADEL-FL: of the batch size
CURVE = 60  # deadlines at which the bound is looked at
BOUND, ADEL = "the theorem's bound", "ADEL-FL"  # where a deadline comes from
SEARCHED = ("method", "deadline", "batches", "local_steps", "compress")


@dataclass(frozen=True)
class Asked:
    """What a plan is to find: the most accuracy within the config's seconds, or the least seconds.

    Settings that are `fixed` are not searched.
    """

    target: float | None = None
    seeds: int = 3
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_target(self.target)
        given = {name: typed(Config, name, value) for name, value in self.fixed.items()}
        object.__setattr__(self, "fixed", given)


@dataclass(frozen=True)
class Regime:
    """What decides on this fleet with these data."""

    shares: Mapping[str, float]  # of the median user's round: links, fixed, rows
    slowest: float  # the time of the 95th percentile of users, over the median's
    available: float  # share of the time
    skew: float | None = None  # mean total variation distance of users' labels from everybody's
    chance: float = 0.0  # the accuracy of always naming the most frequent class


@dataclass(frozen=True, eq=False)
class Planned:
    """The choice, and what it was chosen from."""

    config: Config  # the choice
    asked: Asked
    target: float | None  # asked for, or 95 % of waiting FedAvg's accuracy if that is far from 0
    finalists: Sequence[Candidate]  # the best first
    race: Race
    regime: Regime

    @property
    def best(self) -> Candidate:
        return self.finalists[0]

    @property
    def next_best(self) -> Candidate | None:
        """The best with another method or number of local steps."""
        return next((each for each in self.finalists if each.family != self.best.family), None)

    @property
    def waiting(self) -> Candidate | None:
        return next((each for each in self.finalists if each.waits), None)

    @property
    def seeds(self) -> range:
        return range(self.asked.seeds)

    def times(self, each: Candidate) -> list[float | None]:
        """The seconds to the target, seed by seed."""
        return [self.race.to_target(each, seed, self.target) for seed in self.seeds]

    def accuracies(self, each: Candidate) -> list[float | None]:
        """The accuracies at the end on held-out data, seed by seed."""
        return [self.race.accuracy(each, seed) for seed in self.seeds]

    def histories(self, each: Candidate) -> list[History]:
        """The histories of the runs that did not diverge."""
        found = (self.race.histories.get((each, seed)) for seed in self.seeds)
        return [history for history in found if history is not None]

    def rounds(self, each: Candidate) -> float:
        return fmean([len(history.rows) for history in self.histories(each)] or [0])


@dataclass(eq=False)
class Planner:
    """The search for a config's method, deadline, batches, local steps and compression."""

    base: Config
    problem: Problem
    asked: Asked
    job: Callable[[Mapping[str, Any], Path], Job]  # that runs settings in a folder
    run: Callable[[str, Mapping[str, Job]], Finished]
    folder: Path
    stays: bool = True  # whether the folder is kept
    fleet: Fleet | None = None

    def __post_init__(self) -> None:
        if not self.base.fleet:
            raise SalfError("a plan needs a fleet, such as fleet='phones'.")
        if self.base.seconds is None and self.asked.target is None:
            raise SalfError("a plan needs a time or a target, such as seconds=600 or target=0.9.")
        about = f"{complete(self.base, here=False).to_toml()}\n# {self.asked}\n"
        file = self.folder / "plan.toml"
        if file.exists() and file.read_text(encoding="utf-8") != about:
            raise SalfError(f"{self.folder} contains another plan. Choose another out=.")
        write_whole(file, about)
        self.base = replace(self.base, deadline=None)
        self._laws: dict[Candidate, FleetLaw] = {}

    def plan(self) -> Planned:
        """Race the candidates, look around the best, and repeat those with other seeds."""
        seconds, target = self._seconds(), self.asked.target
        race, seeds = self._race("runs", seconds / EVALUATIONS), range(self.asked.seeds)
        horizons = [part * seconds for part in PARTS]
        ranked = race.halve(self.candidates(seconds), horizons)
        for _ in range(CLIMBS):
            best = leaders(ranked)
            near = [each for leader in best for each in self._near(leader, leader == ranked[0])]
            ranked = race.ranked([*ranked, *race.halve(near, horizons)], seconds)
            if leaders(ranked) == best:
                break
        finalists = list(dict.fromkeys([*ranked[:FINALISTS], *leaders(ranked)]))
        race.advance(finalists, seconds, seeds)
        finalists = race.ranked(finalists, seconds, seeds)
        if not any(race.curve(each, 0) for each in finalists):
            raise SalfError("a plan compares accuracies on held-out data, and there are none.")
        regime, waiting = self._regime(), next((each for each in finalists if each.waits), None)
        if target is None and waiting is not None:
            reached = fmean(race.accuracy(waiting, seed) or 0.0 for seed in seeds)
            # Where waiting is not half-way from chance to all, to be faster means nothing.
            target = SHARE * reached if 2 * reached > 1 + regime.chance else None
        config = self.base.changed(**finalists[0].settings, seconds=seconds)
        return Planned(config, self.asked, target, finalists, race, regime)

    def candidates(self, seconds: float) -> list[Candidate]:
        """All that have some rounds within this time."""
        found = [timed for each in self._variants for timed in self._timed(each, SHARES)]
        own = not {"deadline", "batches"} & {*self.asked.fixed}
        if own and "salf" in self._axis("method", METHODS):
            found += self._by_bound(seconds)
        found = [each for each in found if FEWEST * self._round(each) <= seconds]
        if not found:
            raise SalfError(
                f"no candidate completes {FEWEST} rounds within {seconds:g} s: use more seconds."
            )
        rate = self.base.lr if isinstance(self.base.lr, float) else None
        return [replace(each, lr=rate) for each in found]

    def law(self, each: Candidate) -> FleetLaw:
        """The times of a candidate's users, whatever its method and deadline."""
        timed = replace(each, method="fedavg", deadline=None, lr=None)
        if timed not in self._laws:
            config = self.base.changed(**timed.settings)
            world, _, _ = fleet_world(config, self.problem, config.make_method(), self.fleet)
            cohort, seconds = self.base.cohort_size(), self.base.seconds
            if seconds is None:
                seconds = FleetLaw(world.timing, cohort, 1.0).seconds(None) * 2.0**DOUBLINGS
            self._laws[timed] = FleetLaw(world.timing, cohort, seconds)
        return self._laws[timed]

    def _round(self, each: Candidate) -> float:
        """How long a round takes; where the deadline changes, about."""
        law, T = self.law(each), each.deadline
        return law.seconds(law.deadline_for(SHARES[-2]) if isinstance(T, str) else T)

    def _axis(self, name: str, tried: Sequence[Any]) -> Sequence[Any]:
        """The values of a setting to try: the one that is given, if one is."""
        return [self.asked.fixed[name]] if name in self.asked.fixed else tried

    @cached_property
    def _variants(self) -> list[Candidate]:
        """Methods with ways to size batches and local steps, without those that gain no time."""
        one = Candidate("fedavg")
        plain, steps, batches = self.law(one), [1], ["equal"]
        if not self.base.local_epochs:
            # Local steps that take as long as rounds of their own are no better than rounds.
            several = self.law(replace(one, local_steps=SEVERAL))
            steps += [SEVERAL] * (several.quantile(0.5) < 0.75 * SEVERAL * plain.quantile(0.5))
            try:
                even = self.law(replace(one, batches="equal-time"))
                batches += ["equal-time"] * (even.quantile(0.9) < 0.9 * plain.quantile(0.9))
            except SalfError:  # batches of one row, which batch norm refuses
                pass
        return [
            Candidate(method, None, sized, count, compress)
            for method in self._axis("method", METHODS)
            for sized in self._axis("batches", batches)
            for count in self._axis("local_steps", steps)
            for compress in self._axis("compress", [""])
        ]

    def _timed(self, each: Candidate, shares: Sequence[float]) -> list[Candidate]:
        """The candidate with deadlines by which these shares of the users are done."""
        if not asks(each.method).deadline:
            return [each]
        if "deadline" in self.asked.fixed:
            return [replace(each, deadline=self.asked.fixed["deadline"])]
        law = self.law(each)
        return [replace(each, deadline=law.deadline_for(share)) for share in shares]

    def _race(self, name: str, interval: float) -> Race:
        return Race(self.job, self.run, self.folder / name, self.asked.target, interval)

    def _seconds(self) -> float:
        """The budget; with a target, little more than the time in which somebody reaches it."""
        target, most = self.asked.target, self.law(Candidate("fedavg")).budget
        if target is None:
            return most
        usual = [timed for each in self._variants for timed in self._timed(each, [SHARES[-2]])]
        seconds = PILOT * min(map(self._round, usual))
        race = self._race("pilot", seconds / 4)
        while True:
            seconds = min(seconds, most)
            race.advance(usual, seconds)
            times = (race.to_target(each, 0, target) for each in usual)
            if known := [time for time in times if time is not None]:
                return min(AFTER * min(known), most)
            if seconds == most:
                best = max(race.accuracy(each, 0) or 0.0 for each in usual)
                raise SalfError(
                    f"no candidate reaches an accuracy of {target:g} within {seconds:.3g} s: the "
                    f"best comes to {best:.3f}. Set a lower target= or more seconds=."
                )
            seconds *= 2

    def _near(self, each: Candidate, leads: bool) -> list[Candidate]:
        """A candidate with other rates; the best of all also with other deadlines, compressed."""
        rates = [] if each.lr is None else [by * each.lr for by in RATES]
        found = [replace(each, lr=float(f"{rate:.3g}")) for rate in rates]
        T, law = each.deadline, self.law(each)
        if not leads or isinstance(T, str) or "deadline" in self.asked.fixed:
            return found
        median = law.quantile(0.5)
        others = [] if each.compress else self._axis("compress", COMPRESSIONS)
        saved = {c: median - self.law(replace(each, compress=c)).quantile(0.5) for c in others}
        saving = {name: seconds for name, seconds in saved.items() if seconds > 0.05 * median}
        if T is None:
            return [*found, *(replace(each, compress=compress) for compress in saving)]
        tried = [("", by * T) for by in NEAR] + [(name, T - each) for name, each in saving.items()]
        return found + [
            replace(each, deadline=float(f"{seconds:.3g}"), compress=name or each.compress, note="")
            for name, seconds in tried
        ]

    def _by_bound(self, seconds: float) -> list[Candidate]:
        """SALF with the deadline that minimises the theorem's bound, and as ADEL-FL has it."""
        plain = next(each for each in self._variants if each.method == "salf")
        sizes = {max(1, round(scale * self.base.batch_size)) for scale in SCALES}
        adel = [replace(plain, batches="equal-time", batch_size=size) for size in sorted(sizes)]
        even = any(each.batches == "equal-time" for each in self._variants)
        try:
            (deadline, *_), bound = self._bound(plain, seconds).constant()
            schedules = [self._bound(each, seconds).schedule() for each in adel if even]
        except SalfError:  # a single user
            return []
        found = [replace(plain, deadline=float(f"{deadline:.3g}"), note=BOUND)]
        place = int(np.argmin([value for _, value in schedules])) if even else 0
        if self.stays and even and len(schedules[place][0]) >= FEWEST:
            # ADEL-FL's schedule is a file.
            lines = enumerate(schedules[place][0].tolist(), 1)
            file = (self.folder.parent / "adel-fl.csv").absolute()
            write_whole(file, csv_text([("round", "deadline"), *lines]))
            found.append(replace(adel[place], deadline=str(file), note=ADEL))
        return found if np.isfinite(bound) else []

    def _bound(self, each: Candidate, seconds: float) -> DeadlineBound:
        law = self.law(each)
        federation = Federation(len(law.users), law.timing.layers)
        rows: Ints = np.maximum(np.rint(law.timing.rows(law.users)), 1).astype(np.int64)
        tried = np.geomspace(law.deadline_for(0.0) / 10, law.deadline_for(1.0), CURVE)
        spread = [theorem_spread(law.unreached(T), federation.users) for T in tried.tolist()]
        return DeadlineBound(
            federation,
            self._estimates.constants(rows),
            self._estimates.distance2,
            seconds,
            tried,
            np.array([law.seconds(T) for T in tried.tolist()]),
            np.array(spread),
        )

    @cached_property
    def _estimates(self) -> Estimates:
        batches = Batches(self.problem.users_data, self.base.batch_size, self.base.local_epochs)
        rate = schedule(self.base.lr, self.base.rounds or 1)(1)
        return estimate(self.problem, batches, rate)

    def _regime(self) -> Regime:
        law, users = self.law(Candidate("fedavg")), self.problem.users_data
        regime = Regime(
            law.timing.shares(law.users), law.quantile(0.95) / law.quantile(0.5), law.available()
        )
        if not isinstance(users, Partitioned) or not users.has_classes:
            return regime
        mixes, sizes = users.label_mixes(), users.sizes(np.arange(len(users)))
        everybody: Floats = sizes / sizes.sum() @ mixes
        skew = float(np.abs(mixes - everybody).sum(axis=1).mean() / 2)
        return replace(regime, skew=skew, chance=float(everybody.max()))
