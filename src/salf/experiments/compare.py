"""Many runs side by side: methods, ratios of stragglers, splits, averages and seeds."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from salf.data import load
from salf.depth import has_ratio
from salf.errors import SalfError, TrainingDiverged, unknown
from salf.experiments.config import Config
from salf.experiments.pool import OnProgress, run_all, run_job
from salf.experiments.run import Result, cores
from salf.files import write_whole
from salf.methods import find

RESULTS = "results.csv"


@dataclass(frozen=True)
class Case:
    """One cell of a comparison: everything but the seed."""

    method: str
    average: str
    split: str
    stragglers: float


@dataclass(frozen=True)
class Comparison:
    """Finished runs, grouped by case; each case has one result per seed.

    `failures` names the runs that diverged, each with the reason; they have no result.
    """

    base: Config
    results: dict[Case, list[Result]]
    failures: dict[str, str] = field(default_factory=dict)

    def records(self) -> list[dict[str, Any]]:
        """One entry per case and seed, as in results.csv."""
        return [
            {
                "method": case.method,
                "stragglers": case.stragglers,
                **{key: result.summary[key] for key in ("seed", "test_accuracy", "best_accuracy")},
                **{
                    f"test_{name}": value
                    for name, value in result.history.test.items()
                    if name != "accuracy"
                },
                "split": case.split,
                "average": case.average,
            }
            for case, results in self.results.items()
            for result in results
        ]


def cases(
    methods: Sequence[str],
    averages: Sequence[str],
    splits: Sequence[str],
    stragglers: Sequence[float],
) -> list[Case]:
    """All combinations, in the order people read them."""
    return [Case(m, a, s, r) for s, a, m, r in product(splits, averages, methods, stragglers)]


def compare(
    base: Config,
    wanted: Sequence[Case],
    seeds: Sequence[int],
    out: Path | str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Run every case with every seed, several at a time, one thread each.

    With `out`, each run has its folder there and the same call again goes on where it stopped.
    `options` go to the methods that have them, on top of the base config's.
    """
    out = None if out is None else Path(out)
    if not wanted or not seeds:
        raise SalfError("there is nothing to compare: name at least one method and one seed.")
    ratios = {case.stragglers for case in wanted}
    if not has_ratio(base.depth) and len(ratios) > 1:
        raise SalfError(
            f"ratios of stragglers belong to --depth mixture; with --depth {base.depth} they "
            "change nothing, so name one."
        )
    _check_options(options or {}, wanted)
    options = {**base.options, **(options or {})}
    jobs = {(case, seed): _config(base, case, seed, options) for case in wanted for seed in seeds}
    # Once here, so that data are fetched once and what is wrong with them is said once.
    load(base.data, Path(base.data_dir) if base.data_dir else None, report=report)
    # A method that waits for everybody gives one result whatever the ratio of stragglers is.
    distinct = {_label(config): config for config in jobs.values()}
    workers = workers or min(cores(), len(distinct))
    runs = {
        label: run_job(config, None if out is None else out / "runs" / label)
        for label, config in distinct.items()
    }
    done = run_all(runs, workers, on_progress)
    results: dict[Case, list[Result]] = {}
    for (case, _), config in jobs.items():
        if _label(config) in done.results:
            results.setdefault(case, []).append(done.results[_label(config)])
    if not results:
        raise TrainingDiverged(f"no run finished: {_listed(done.failures)}")
    comparison = Comparison(base, results, done.failures)
    if out is not None:
        write_whole(out / RESULTS, results_csv(comparison))
    return comparison


def _listed(failures: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {reason}" for name, reason in failures.items())


def results_csv(comparison: Comparison) -> str:
    """One line per case and seed."""
    text = io.StringIO()
    records = comparison.records()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _check_options(options: Mapping[str, Any], wanted: Sequence[Case]) -> None:
    known = {name for case in wanted for name in _own_options(case.method)}
    for name in options:
        if name.replace("_", "-") not in known:
            raise unknown("option of these methods", name, known)


def _own_options(name: str) -> set[str]:
    return {option.name.replace("_", "-") for option in fields(find(name))} - {"average"}


def _config(base: Config, case: Case, seed: int, options: Mapping[str, Any]) -> Config:
    waits, own = find(case.method).waits, _own_options(case.method)
    return base.changed(
        method=case.method,
        average="reached" if waits else case.average,
        split=case.split,
        stragglers=0.0 if waits else case.stragglers,
        seed=seed,
        threads=base.threads or 1,
        options={name: v for name, v in options.items() if name.replace("_", "-") in own},
    )


def _label(config: Config) -> str:
    """A name for a run within a comparison, fit for a folder."""
    return label(config.method, config.average, config.split, config.stragglers, config.seed)


def label(method: str, average: str, split: str, stragglers: float, seed: int) -> str:
    """A name for a run within a comparison, fit for a folder."""
    parts = (method, average, split, f"{stragglers:g}", seed)
    return "-".join(re.sub(r"[^\w.]", "_", str(part)) for part in parts)
