"""Run methods through the suite: choose each one's learning rate, then measure every seed.

Each run is measured once, and what was measured is one small file.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from sys import modules

from salf.bench import results
from salf.bench.results import BenchRow, BenchRun, CellResult, cell_result
from salf.bench.suite import REFERENCE, BenchCell, Entrant, Suite
from salf.common import Report
from salf.common.errors import NoRoundInTime, SalfError, TrainingDiverged, in_one_line
from salf.common.files import folder_name, write_whole
from salf.data import load
from salf.methods import find, method
from salf.runs.config import Config
from salf.runs.federation import data_files
from salf.runs.folder import versions
from salf.runs.pool import Job, OnProgress, WorkersLike, run_all
from salf.runs.run import run
from salf.runs.training import OnPart, counted

Key = tuple[str, float, int]  # of a run: its cell, learning rate and seed
Measured = dict[Key, BenchRun]
MeasureRuns = Callable[[str, Mapping[Key, tuple[Config, float]]], Measured]
WatchRuns = Callable[[str], OnProgress]  # gets what is being run


def bench(
    suite: Suite,
    entrants: Sequence[Entrant],
    out: Path,
    published: Mapping[str, BenchRow],
    *,
    workers: WorkersLike = None,
    watch: WatchRuns | None = None,
    report: Report | None = None,
) -> list[BenchRow]:
    """The rows of these methods, which are written to `out`/rows, each when it is complete.

    Runs that are in `out`/runs are not repeated. Targets come from the published row of the
    reference; without one, the reference is run too.
    """
    for entrant in entrants:  # what is wrong with a method is said once, and is no result
        method(entrant.method, **entrant.options)
        if all(reasons := [_refusal(suite, entrant, cell) for cell in suite.cells]):
            raise SalfError(f"{entrant.name} cannot run in any scenario: {reasons[0]}")
    for data in suite.data:  # fetched once, and what is wrong with them is said once
        load(data, report=report)
    targets = dict(published[REFERENCE.name].cells) if REFERENCE.name in published else {}
    missing = [cell for cell in suite.cells if cell.key not in targets]
    todo = [(REFERENCE, missing)] if missing else []
    todo += [(entrant, list(suite.cells)) for entrant in entrants]
    rows = []

    def measured(what: str, configs: Mapping[Key, tuple[Config, float]]) -> Measured:
        return measure(out / "runs", workers, configs, watch and watch(what))

    for entrant, cells in todo:
        found = _results(suite, entrant, cells, targets, measured)
        row = BenchRow(entrant, suite.version, found, versions())
        rows.append(results.read(results.write(out / "rows", row)))
        if entrant is REFERENCE:
            targets |= found
    return rows


def _results(
    suite: Suite,
    entrant: Entrant,
    cells: Sequence[BenchCell],
    targets: Mapping[str, CellResult],
    run: MeasureRuns,
) -> dict[str, CellResult]:
    """A method's results in these cells: first its learning rate in each, then all seeds."""
    refused = {cell.key: why for cell in cells if (why := _refusal(suite, entrant, cell))}
    found = {key: CellResult(refused=why) for key, why in refused.items()}
    going = [cell for cell in cells if cell.key not in found]

    def measured(
        what: str, tried: Sequence[tuple[BenchCell, float]], seeds: Sequence[int]
    ) -> Measured:
        configs = {
            (cell.key, lr, seed): (cell.config(entrant, seed, lr), float(cell.scenario.rounds))
            for (cell, lr), seed in product(tried, seeds)
        }
        return run(f"{entrant.name}, {what}", configs)

    seeds = suite.tuning_seeds
    tuned = measured("learning rates", [*product(going, suite.rates)], seeds)
    tuning = {
        cell.key: {
            lr: _late_accuracy([tuned[cell.key, lr, seed] for seed in seeds]) for lr in suite.rates
        }
        for cell in going
    }
    best = {name: _best(accuracies) for name, accuracies in tuning.items()}
    runs = measured("seeds", [(cell, best[cell.key]) for cell in going], suite.seeds)
    for cell in going:
        lr = best[cell.key]
        own = [runs[cell.key, lr, seed] for seed in suite.seeds]
        found[cell.key] = cell_result(cell, lr, tuning[cell.key], own, targets.get(cell.key))
    return found


def _refusal(suite: Suite, entrant: Entrant, cell: BenchCell) -> str:
    """Why a method cannot be configured for a scenario, if so."""
    try:
        cell.config(entrant, suite.seeds[0], suite.rates[0])
    except SalfError as error:
        return in_one_line(error)
    return ""


def _late_accuracy(runs: Sequence[BenchRun]) -> float | None:
    """The mean late accuracy over the tuning seeds; None for a rate that fails with one of them."""
    known = [accuracy for run in runs if (accuracy := run.late_accuracy) is not None]
    return round(fmean(known), 5) if len(known) == len(runs) else None


def _best(tuning: Mapping[float, float | None]) -> float:
    """The learning rate with the best accuracy; the first if all failed."""
    return max(tuning, key=lambda lr: -1.0 if (found := tuning[lr]) is None else found)


def measure(
    folder: Path,
    workers: WorkersLike,
    configs: Mapping[Key, tuple[Config, float]],
    on_progress: OnProgress | None = None,
) -> dict[Key, BenchRun]:
    """Measure each of these (config, work), several at a time; equal configs are one run.

    Results that are in the folder are read from there.
    """
    files = {
        name: folder.absolute() / f"{key(config)}.json" for name, (config, _) in configs.items()
    }
    found = {str(file): _read(file) for file in files.values()}
    jobs = {
        str(file): Job(partial(_measure, config, file), work, file, data_files(config))
        for (config, work), file in zip(configs.values(), files.values(), strict=True)
        if found[str(file)] is None
    }
    found |= run_all(jobs, workers, on_progress).results
    return {name: run for name, file in files.items() if (run := found[str(file)]) is not None}


def key(config: Config) -> str:
    """A name for a run, with a digest of its settings and of the file that the method is in."""
    settings = json.dumps({**config.table(), "method_source": _source(config.method)}, default=str)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return f"{config.data}-{folder_name(config.method)}-{config.seed}-{digest}"


def _source(method: str) -> str:
    try:
        return inspect.getsource(modules[find(method).__module__])
    except (OSError, TypeError):
        return ""


def _measure(config: Config, path: Path, progress: OnPart) -> BenchRun:
    on_round = counted(config.rounds, config.seconds, progress)
    try:
        measured = BenchRun.of(config, run(config, on_round=on_round).history)
    except TrainingDiverged as error:
        measured = BenchRun(config.seed, failed=in_one_line(error))
    except NoRoundInTime:
        measured = BenchRun(config.seed, failed="no round ended within the budget")
    except SalfError as error:
        measured = BenchRun(config.seed, refused=in_one_line(error))
    write_whole(path, json.dumps(asdict(measured)) + "\n")
    return measured


def _read(path: Path) -> BenchRun | None:
    try:
        return BenchRun(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SalfError(f"{path} is not a run of the benchmark ({error}): delete it.") from None
