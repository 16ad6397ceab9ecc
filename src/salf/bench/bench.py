"""Run methods through the suite: choose each one's learning rate, then measure every seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from salf.bench import results
from salf.bench.results import Outcome, Row, made_with, outcome
from salf.bench.runs import Measured, key, measure
from salf.bench.suite import REFERENCE, Cell, Entrant, Suite
from salf.common.errors import SalfError, in_one_line
from salf.data import load
from salf.methods import method
from salf.runs.pool import OnProgress

Outcomes = dict[str, Outcome]  # by the key of the cell


def bench(
    suite: Suite,
    entrants: Sequence[Entrant],
    out: Path,
    published: Mapping[str, Row],
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    on_row: Callable[[Row], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Row]:
    """The rows of these methods, one after the other, which are left in `out`/rows.

    What was run before is not run again. Targets come from the published row of the reference, or
    it is run too. `on_row` gets each row when it is complete.
    """
    for entrant in entrants:  # what is wrong with a method is said once, and is no result
        method(entrant.method, **entrant.options)
        _check(suite, entrant)
    for data in suite.data:  # fetched once, and what is wrong with them is said once
        load(data, report=report)
    reference = published.get(REFERENCE.name)
    targets: Outcomes = {} if reference is None else dict(reference.cells)
    missing = [cell for cell in suite.cells if cell.key not in targets]
    todo = [(REFERENCE, missing)] if missing else []
    todo += [(entrant, list(suite.cells)) for entrant in entrants]
    rows = []
    for number, (entrant, cells) in enumerate(todo):
        progress = None if on_progress is None else _part(on_progress, number, len(todo))
        found = _outcomes(suite, entrant, cells, out / "runs", targets, workers, progress)
        row = Row(entrant, suite.version, found, made_with())
        rows.append(results.read(results.write(out / "rows", row)))
        if entrant is REFERENCE:
            targets |= found
        if on_row is not None:
            on_row(rows[-1])
    return rows


def _part(on_progress: OnProgress, number: int, of: int) -> OnProgress:
    """The progress of one method of several."""
    return lambda done, total: on_progress(number + done / (total or 1), of)


def _outcomes(
    suite: Suite,
    entrant: Entrant,
    cells: Sequence[Cell],
    folder: Path,
    targets: Outcomes,
    workers: int | None,
    on_progress: OnProgress | None,
) -> Outcomes:
    """Of a method in these cells: first its learning rate in each, then all seeds."""
    refused = {cell.key: why for cell in cells if (why := _refusal(suite, entrant, cell))}
    going = [cell for cell in cells if cell.key not in refused]
    tries, seeds = len(suite.rates) * len(suite.tuning_seeds), len(suite.seeds)

    def progress(before: int, upto: int) -> OnProgress | None:
        if on_progress is None:
            return None
        # Of what is left to do: runs that were there before are done.
        return lambda done, of: on_progress(
            before + (upto - before) * done / (of or 1), tries + seeds
        )

    tuned = measure(
        [
            (cell.config(entrant, seed, lr), cell.scenario.rounds)
            for cell in going
            for lr in suite.rates
            for seed in suite.tuning_seeds
        ],
        folder,
        workers,
        progress(0, tries),
    )
    rates = {cell.key: _best_rate(suite, entrant, cell, tuned) for cell in going}
    measured = measure(
        [
            (cell.config(entrant, seed, rates[cell.key][0]), cell.scenario.rounds)
            for cell in going
            for seed in suite.seeds
        ],
        folder,
        workers,
        progress(tries, tries + seeds),
    )
    found = {key: Outcome(refused=why) for key, why in refused.items()}
    for cell in going:
        lr, tuning = rates[cell.key]
        runs = {seed: measured[key(cell.config(entrant, seed, lr))] for seed in suite.seeds}
        found[cell.key] = outcome(cell, lr, tuning, runs, targets.get(cell.key))
    return found


def _check(suite: Suite, entrant: Entrant) -> None:
    """Refuse a method that cannot be configured for any scenario: it is a mistake, no result."""
    reasons = [_refusal(suite, entrant, cell) for cell in suite.cells]
    if all(reasons):
        raise SalfError(f"{entrant.name} cannot run in any scenario: {reasons[0]}")


def _refusal(suite: Suite, entrant: Entrant, cell: Cell) -> str:
    """Why a method cannot be configured for a scenario, if so."""
    try:
        cell.config(entrant, suite.seeds[0], suite.rates[0])
    except SalfError as error:
        return in_one_line(error)
    return ""


def _best_rate(
    suite: Suite, entrant: Entrant, cell: Cell, tuned: Mapping[str, Measured]
) -> tuple[float, dict[str, float | None]]:
    """The learning rate with the best late accuracy on held-out data, and that of each.

    It is the mean over the tuning seeds; a rate that fails with one of them has none.
    """
    found: dict[float, float | None] = {}
    for lr in suite.rates:
        runs = [tuned[key(cell.config(entrant, seed, lr))] for seed in suite.tuning_seeds]
        values = [run.late_accuracy for run in runs]
        known = [value for value in values if value is not None]
        found[lr] = round(fmean(known), 5) if len(known) == len(values) else None
    rated = {lr: accuracy for lr, accuracy in found.items() if accuracy is not None}
    best = max(rated, key=lambda lr: rated[lr], default=suite.rates[0])
    return best, {f"{lr:g}": accuracy for lr, accuracy in found.items()}
