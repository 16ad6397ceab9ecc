"""Many runs side by side: methods, ratios of stragglers, splits, averages, batches and seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from salf.common.errors import SalfError, TrainingDiverged, unknown
from salf.common.files import csv_of, folder_name, write_whole
from salf.methods import asks, find
from salf.methods import method as make_method
from salf.runs.clocked import SHARE, Clocked
from salf.runs.config import Config
from salf.runs.federation import load_data
from salf.runs.pool import OnProgress, run_configs
from salf.runs.run import Result
from salf.worlds.depth import has_ratio

RESULTS = "results.csv"


@dataclass(frozen=True)
class Case:
    """One cell of a comparison: everything but the seed."""

    method: str
    average: str
    split: str
    stragglers: float
    batches: str = "equal"


@dataclass(frozen=True)
class Comparison:
    """Finished runs, grouped by case; each case has one result per seed.

    `failures` names the runs that diverged, each with the reason; they have no result. `goal` is
    the accuracy to reach by the simulated clock; by default 95 % of waiting FedAvg's.
    """

    base: Config
    results: dict[Case, list[Result]]
    failures: dict[str, str] = field(default_factory=dict)
    goal: float | None = None

    def waiting(self, case: Case) -> Case | None:
        """The case of a method that waits for all users to compare this one with."""
        others = [
            other
            for other in self.results
            if asks(other.method).waits
            and (other.split, other.average) == (case.split, case.average)
        ]
        return min(others, key=lambda other: other.batches != "equal", default=None)

    def target(self, case: Case, seed: int) -> float | None:
        """The accuracy on held-out data that runs of this case and seed are to reach."""
        if self.goal is not None or (waiting := self.waiting(case)) is None:
            return self.goal
        curves = [run.history.curve for run in self.results[waiting] if run.config.seed == seed]
        return SHARE * curves[0][-1][1] if curves and curves[0] else None

    def clocked(self, case: Case) -> list[Clocked]:
        """What the runs of a case took by the simulated clock, seed by seed."""
        return [
            Clocked.of(run.history, self.target(case, run.config.seed))
            for run in self.results[case]
        ]

    def records(self) -> list[dict[str, Any]]:
        """One entry per case and seed, as in results.csv."""
        return [
            {
                "method": case.method,
                **self._condition(case),
                **{key: result.summary[key] for key in ("seed", "test_accuracy", "best_accuracy")},
                **{
                    f"test_{name}": value
                    for name, value in result.history.test.items()
                    if name != "accuracy"
                },
                **clocked,
                "split": case.split,
                "average": case.average,
            }
            for case, results in self.results.items()
            for result, clocked in zip(results, self._clocked_records(case), strict=True)
        ]

    def _condition(self, case: Case) -> dict[str, Any]:
        if not self.base.fleet:
            return {"stragglers": case.stragglers}
        deadline = None if asks(case.method).waits else self.base.deadline
        return {"batches": case.batches, "fleet": self.base.fleet, "deadline": deadline}

    def _clocked_records(self, case: Case) -> list[dict[str, float | None]]:
        if not self.base.fleet:
            return [{} for _ in self.results[case]]
        return [clocked.record() for clocked in self.clocked(case)]


def cases(
    methods: Sequence[str],
    averages: Sequence[str],
    splits: Sequence[str],
    stragglers: Sequence[float],
    batches: Sequence[str] = ("auto",),
    devices: bool = False,
) -> list[Case]:
    """All combinations, in the order people read them.

    A method may bring its own way to size batches, as in `salf+equal-time`. `devices` says whether
    there are any to size batches for.
    """
    sized = [pair for method in methods for pair in variants(method, batches, devices)]
    return [Case(m, a, s, r, b) for s, a, (m, b), r in product(splits, averages, sized, stragglers)]


def variants(method: str, batches: Sequence[str], devices: bool = False) -> list[tuple[str, str]]:
    """(method, batches) of a method as it is written, with batches of its own or with these."""
    name, plus, own = method.partition("+")
    auto = "equal-time" if devices and asks(name).stands_in else "equal"
    chosen = [auto if each == "auto" else each for each in ([own] if plus else batches)]
    return [(name, each) for each in dict.fromkeys(chosen)]


def compare(
    base: Config,
    wanted: Sequence[Case],
    seeds: Sequence[int],
    out: Path | str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    goal: float | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Run every case with every seed, several at a time, one thread each.

    With `out`, each run has its folder there and the same call again goes on where it stopped.
    `options` go to the methods that have them, on top of the base config's. `goal` is the accuracy
    to reach by the simulated clock of a fleet.
    """
    out = None if out is None else Path(out)
    if not wanted or not seeds:
        raise SalfError("there is nothing to compare: pass at least one method and one seed.")
    check_goal(goal, base.fleet)
    ratios = {case.stragglers for case in wanted}
    if base.fleet and len(ratios) > 1:
        raise SalfError(
            "ratios of stragglers do not apply to a fleet: its devices determine who is slow."
        )
    if not has_ratio(base.depth) and len(ratios) > 1:
        raise SalfError(
            "ratios of stragglers belong to depth='mixture' and have no effect with depth "
            f"{base.depth}: pass only one."
        )
    _check_options(options or {}, wanted)
    options = {**base.options, **(options or {})}
    jobs = {(case, seed): _config(base, case, seed, options) for case in wanted for seed in seeds}
    for config in jobs.values():
        config.check_deadline()
    if base.reach == "learned" and all(config.reach == "known" for config in jobs.values()):
        raise SalfError("none of these methods uses p_l: leave out reach=.")
    # Once here, so that data are fetched once and what is wrong with them is said once.
    load_data(base, report)
    # A method that waits for everybody gives one result whatever the ratio of stragglers is.
    distinct = {_label(config): config for config in jobs.values()}
    done = run_configs(distinct, out, workers, on_progress)
    results: dict[Case, list[Result]] = {}
    for (case, _), config in jobs.items():
        if _label(config) in done.results:
            results.setdefault(case, []).append(done.results[_label(config)])
    if not results:
        raise TrainingDiverged(f"no run finished: {_listed(done.failures)}")
    comparison = Comparison(base, results, done.failures, goal)
    if out is not None:
        write_whole(out / RESULTS, results_csv(comparison))
    return comparison


def check_goal(goal: float | None, fleet: object) -> None:
    """Refuse an accuracy to reach that is none, or that no clock measures."""
    if goal is None:
        return
    if not fleet:
        raise SalfError("a target needs the simulated clock of a fleet, such as fleet='phones'.")
    if not 0 < goal <= 1:
        raise SalfError(f"the target is an accuracy above 0 and at most 1, not {goal}.")


def _listed(failures: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {reason}" for name, reason in failures.items())


def results_csv(comparison: Comparison) -> str:
    """One line per case and seed."""
    return csv_of(comparison.records())


def _check_options(options: Mapping[str, Any], wanted: Sequence[Case]) -> None:
    known = {name for case in wanted for name in _own_options(case.method)}
    for name in options:
        if name.replace("_", "-") not in known:
            raise unknown("option of these methods", name, known)


def average_of(case: Case) -> str:
    """The average of a case's runs: "reached" where the method leaves no choice."""
    chosen = any(option.name == "average" for option in fields(find(case.method)))
    return case.average if chosen and not asks(case.method).waits else "reached"


def _own_options(name: str) -> set[str]:
    return {option.name.replace("_", "-") for option in fields(find(name))} - {"average"}


def _config(base: Config, case: Case, seed: int, options: Mapping[str, Any]) -> Config:
    waits, own = asks(case.method).waits, _own_options(case.method)
    average = average_of(case)
    options = {name: v for name, v in options.items() if name.replace("_", "-") in own}
    uses_reach = make_method(case.method, average=average, **options).asks.reach
    return base.changed(
        method=case.method,
        average=average,
        reach=base.reach if uses_reach else "known",
        split=case.split,
        # With a fleet it says nothing.
        stragglers=None if base.fleet else 0.0 if waits else case.stragglers,
        batches=case.batches,
        seed=seed,
        threads=base.threads or 1,
        options=options,
    )


def _label(config: Config) -> str:
    """A name for a run within a comparison, fit for a folder."""
    condition = config.fleet or f"{config.stragglers:g}"
    return label(
        config.method, config.average, config.split, condition, config.seed, config.batches
    )


def label(
    method: str, average: str, split: str, condition: str, seed: int, batches: str = "equal"
) -> str:
    """A name for a run within a comparison, fit for a folder."""
    sized = () if batches in ("auto", "equal") else (batches,)
    parts = (method, *sized, average, split, condition, seed)
    return folder_name(*parts)
