"""Run methods through the suite: choose each one's learning rate, then measure every seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from salf.bench import results
from salf.bench.results import Outcome, Row, made_with, outcome
from salf.bench.runs import Measured, key, measure
from salf.bench.suite import REFERENCE, Cell, Entrant, Suite
from salf.data import load
from salf.errors import SalfError, in_one_line
from salf.experiments.pool import OnProgress
from salf.experiments.run import cores
from salf.methods import method

Place = tuple[Entrant, Cell]


def bench(
    suite: Suite,
    entrants: Sequence[Entrant],
    out: Path,
    published: Mapping[str, Row],
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Row]:
    """The rows of these methods, which are left in `out`/rows. What was run before is not again.

    Targets come from the published row of the reference, or it is run too.
    """
    for entrant in entrants:  # what is wrong with a method is said once, and is no result
        method(entrant.method, **entrant.options)
    for data in suite.data:  # fetched once, and what is wrong with them is said once
        load(data, report=report)
    reference = published.get(REFERENCE.name)
    known = {} if reference is None else reference.cells
    missing = [cell for cell in suite.cells if cell.key not in known]
    places: list[Place] = [(REFERENCE, cell) for cell in missing]
    places += [(entrant, cell) for entrant in dict.fromkeys(entrants) for cell in suite.cells]
    found = _outcomes(suite, places, out / "runs", known, workers or cores(), on_progress)
    rows = []
    for entrant in dict.fromkeys(entrant for entrant, _ in places):
        cells = {cell.key: each for (who, cell), each in found.items() if who == entrant}
        row = Row(entrant, suite.version, cells, made_with())
        rows.append(results.read(results.write(out / "rows", row)))
    return rows


def _outcomes(
    suite: Suite,
    places: Sequence[Place],
    folder: Path,
    known: Mapping[str, Outcome],
    workers: int,
    on_progress: OnProgress | None,
) -> dict[Place, Outcome]:
    refused = {place: why for place in places if (why := _refusal(suite, place))}
    for entrant in dict.fromkeys(entrant for entrant, _ in places):
        reasons = [refused.get(place, "") for place in places if place[0] is entrant]
        if all(reasons):  # then it is a mistake, and no result
            raise SalfError(f"{entrant.name} cannot run in any scenario: {reasons[0]}")
    going = [place for place in places if place not in refused]
    tries = len(suite.rates) * len(suite.tuning_seeds)
    rounds = sum(cell.scenario.rounds for _, cell in going)
    total = rounds * (tries + len(suite.seeds))

    def progress(before: float, upto: float) -> OnProgress | None:
        if on_progress is None:
            return None
        # Of what is left to do: runs that were there before are done.
        return lambda done, of: on_progress(before + done / (of or 1) * (upto - before), total)

    tuned = measure(
        [
            (cell.config(entrant, seed, lr), cell.scenario.rounds)
            for entrant, cell in going
            for lr in suite.rates
            for seed in suite.tuning_seeds
        ],
        folder,
        workers,
        progress(0, rounds * tries),
    )
    rates = {place: _best_rate(suite, place, tuned) for place in going}
    measured = measure(
        [
            (cell.config(entrant, seed, rates[entrant, cell][0]), cell.scenario.rounds)
            for entrant, cell in going
            for seed in suite.seeds
        ],
        folder,
        workers,
        progress(rounds * tries, total),
    )
    found: dict[Place, Outcome] = {place: Outcome(refused=why) for place, why in refused.items()}
    references = dict(known)
    for entrant, cell in going:  # the reference comes first
        lr, tuning = rates[entrant, cell]
        runs = {seed: measured[key(cell.config(entrant, seed, lr))] for seed in suite.seeds}
        found[entrant, cell] = outcome(cell, lr, tuning, runs, references.get(cell.key))
        if entrant is REFERENCE:
            references[cell.key] = found[entrant, cell]
    return {place: found[place] for place in places}


def _refusal(suite: Suite, place: Place) -> str:
    """Why a method cannot be configured for a scenario, if so."""
    entrant, cell = place
    try:
        cell.config(entrant, suite.seeds[0], suite.rates[0])
    except SalfError as error:
        return in_one_line(error)
    return ""


def _best_rate(
    suite: Suite, place: Place, tuned: Mapping[str, Measured]
) -> tuple[float, dict[str, float | None]]:
    """The learning rate with the best late accuracy on held-out data, and that of each.

    It is the mean over the tuning seeds; a rate that fails with one of them has none.
    """
    entrant, cell = place
    found: dict[float, float | None] = {}
    for lr in suite.rates:
        runs = [tuned[key(cell.config(entrant, seed, lr))] for seed in suite.tuning_seeds]
        values = [run.late_accuracy for run in runs]
        known = [value for value in values if value is not None]
        found[lr] = round(fmean(known), 5) if len(known) == len(values) else None
    rated = {lr: accuracy for lr, accuracy in found.items() if accuracy is not None}
    best = max(rated, key=lambda lr: rated[lr], default=suite.rates[0])
    return best, {f"{lr:g}": accuracy for lr, accuracy in found.items()}
