"""Run methods through the suite: choose each one's learning rate, then measure every seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from salf.bench import results
from salf.bench.results import BenchRow, CellResult, cell_result
from salf.bench.runs import BenchRun, measure
from salf.bench.suite import REFERENCE, BenchCell, Entrant, Suite
from salf.common.errors import SalfError, in_one_line
from salf.common.progress import Report
from salf.data import load
from salf.methods import method
from salf.runs.pool import OnProgress

Results = dict[str, CellResult]  # by the key of the cell


def bench(
    suite: Suite,
    entrants: Sequence[Entrant],
    out: Path,
    published: Mapping[str, BenchRow],
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
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
    reference = published.get(REFERENCE.name)
    targets: Results = {} if reference is None else dict(reference.cells)
    missing = [cell for cell in suite.cells if cell.key not in targets]
    todo = [(REFERENCE, missing)] if missing else []
    todo += [(entrant, list(suite.cells)) for entrant in entrants]
    rows = []
    for number, (entrant, cells) in enumerate(todo):
        progress = _part(on_progress, number / len(todo), 1 / len(todo))
        found = _results(suite, entrant, cells, out / "runs", targets, workers, progress)
        row = BenchRow(entrant, suite.version, found, results.made_with())
        rows.append(results.read(results.write(out / "rows", row)))
        if entrant is REFERENCE:
            targets |= found
    return rows


def _part(on_progress: OnProgress | None, start: float, length: float) -> OnProgress | None:
    """The progress of a part of the work, from `start` on, as fractions of all of it."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(start + length * done / (total or 1), 1)


def _results(
    suite: Suite,
    entrant: Entrant,
    cells: Sequence[BenchCell],
    folder: Path,
    targets: Results,
    workers: int | None,
    on_progress: OnProgress | None,
) -> Results:
    """A method's results in these cells: first its learning rate in each, then all seeds."""
    refused = {cell.key: why for cell in cells if (why := _refusal(suite, entrant, cell))}
    going = [cell for cell in cells if cell.key not in refused]

    def measured(
        rates: Mapping[str, Sequence[float]], seeds: Sequence[int], progress: OnProgress | None
    ) -> dict[tuple[str, float, int], BenchRun]:
        configs = {
            (cell.key, lr, seed): (cell.config(entrant, seed, lr), float(cell.scenario.rounds))
            for cell in going
            for lr in rates[cell.key]
            for seed in seeds
        }
        return measure(configs, folder, workers, progress)

    tries = len(suite.rates) * len(suite.tuning_seeds)
    split = tries / (tries + len(suite.seeds))  # of the work, before any of it is found in a file
    tuned = measured(
        {cell.key: suite.rates for cell in going},
        suite.tuning_seeds,
        _part(on_progress, 0, split),
    )
    tuning = {
        cell.key: {
            lr: _late_accuracy([tuned[cell.key, lr, seed] for seed in suite.tuning_seeds])
            for lr in suite.rates
        }
        for cell in going
    }
    best = {name: _best(accuracies) for name, accuracies in tuning.items()}
    runs = measured(
        {name: [lr] for name, lr in best.items()},
        suite.seeds,
        _part(on_progress, split, 1 - split),
    )
    found = {name: CellResult(refused=why) for name, why in refused.items()}
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
    rated = {lr: accuracy for lr, accuracy in tuning.items() if accuracy is not None}
    return max(rated, key=lambda lr: rated[lr], default=next(iter(tuning)))
