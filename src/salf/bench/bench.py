"""Run methods through the suite: choose each one's learning rate, then measure every seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    going = [place for place in places if place not in refused]
    per_rate, per_seed = len(suite.rates), len(suite.seeds)
    rounds = sum(cell.scenario.rounds for _, cell in going)
    total = rounds * (per_rate + per_seed)

    def progress(before: float, upto: float) -> OnProgress | None:
        if on_progress is None:
            return None
        # Of what is left to do: runs that were there before are done.
        return lambda done, of: on_progress(before + done / (of or 1) * (upto - before), total)

    tuned = measure(
        [
            (cell.config(entrant, suite.tuning_seed, lr), cell.scenario.rounds)
            for entrant, cell in going
            for lr in suite.rates
        ],
        folder,
        workers,
        progress(0, rounds * per_rate),
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
        progress(rounds * per_rate, total),
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
        cell.config(entrant, suite.tuning_seed, suite.rates[0])
    except SalfError as error:
        return in_one_line(error)
    return ""


def _best_rate(
    suite: Suite, place: Place, tuned: Mapping[str, Measured]
) -> tuple[float, dict[str, float | None]]:
    """The learning rate with the best accuracy on held-out data, and the accuracy of each."""
    entrant, cell = place
    found = {
        lr: tuned[key(cell.config(entrant, suite.tuning_seed, lr))].held_out for lr in suite.rates
    }
    known = {lr: accuracy for lr, accuracy in found.items() if accuracy is not None}
    best = max(known, key=lambda lr: known[lr], default=suite.rates[0])
    return best, {f"{lr:g}": accuracy for lr, accuracy in found.items()}
