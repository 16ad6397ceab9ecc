"""A comparison by the simulated clock: each method's final accuracy and time to the target."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from salf.report import names
from salf.report.charts import heading
from salf.report.measured import Spread, swept, test_accuracy
from salf.report.tables import Table, best, bold
from salf.runs.clocked import SHARE, Clocked
from salf.runs.compare import Case, Comparison
from salf.runs.settings import key
from salf.runs.training import SLOWEST
from salf.worlds.fleet.named import assumed

TO_TARGET = "Seconds to target"
NOT_REACHED, NOT_MEASURED = "not reached", "–"


def classifies(comparison: Comparison) -> bool:
    """Whether an accuracy was measured; if not, it is a regression, say, and has a loss only."""
    runs = [run.history for results in comparison.results.values() for run in results]
    return any(run.curve or run.test_accuracy is not None for run in runs)


def table(comparison: Comparison, cases: Sequence[Case], caption: str) -> Table:
    """A row per method, way to size batches, and values of other settings."""
    accuracies = classifies(comparison)
    ends = {
        case: test_accuracy(comparison, case) if accuracies else _test_loss(comparison, case)
        for case in cases
    }
    # What looks the same in the table is the same.
    rounded = {case: None if end is None else round(end.mean, 3) for case, end in ends.items()}
    leading = best(rounded, max if accuracies else min)
    soonest = best({case: _mean_to_target(comparison.clocked(case)) for case in cases}, min)
    rows = []
    for case in cases:
        runs = comparison.clocked(case)
        row = {
            "Method": names.variant(case.method, case.batches)
            + " (waits)" * names.waits(case.method),
            **{key(name): f"{value}" for name, value in case.more},
            "Accuracy" if accuracies else "Loss": bold(_spread(ends[case]), case in leading),
            "Slowest 10 %": _spread(Spread.of(run.slowest for run in runs)),
            "Rounds": f"{fmean(run.rounds for run in runs):.0f}",
            TO_TARGET: bold(_to_target(runs), case in soonest),
            "Waited": _number(fmean(r.waited for r in runs) / comparison.base.cohort_size()),
            "Work lost": f"{fmean(run.lost_work for run in runs):.0%}",
            "Bytes lost": f"{fmean(run.lost_bytes for run in runs):.0%}",
        }
        hidden = () if accuracies else ("Slowest 10 %", TO_TARGET)
        rows.append({column: text for column, text in row.items() if column not in hidden})
    return Table(list(rows[0]), [list(row.values()) for row in rows], caption)


def _test_loss(comparison: Comparison, case: Case) -> Spread | None:
    return Spread.of(run.history.test.get("loss") for run in comparison.results[case])


def notes(comparison: Comparison) -> list[str]:
    """The meaning of the columns."""
    accuracies = [
        "Slowest 10 %: accuracy on the data of the 10 % of users with the slowest devices.",
        f"Seconds to target: until the first evaluation on held-out data at or above "
        f"{_target(comparison)}.",
    ]
    return [
        *(accuracies if classifies(comparison) else []),
        "Waited: simulated seconds from when a user finishes to the end of the round. Work and "
        "bytes lost: what contributes to no update: from users that a method drops, "
        "and from layers that were started but not completed by the deadline.",
    ]


def sentences(comparison: Comparison) -> list[str]:
    """The results in words: every method compared with the one that waits, and a caveat."""
    found: list[str] = []
    for case in comparison.results:
        waiting = comparison.waiting(case)
        if waiting is None:
            continue
        rivals = [waiting]
        if case.method == "salf":  # also with others that size their batches like it
            rivals += [replace(case, method=method) for method in (waiting.method, "drop")]
        known = [each for each in dict.fromkeys(rivals) if each in comparison.results]
        found += [_against(comparison, case, rival) for rival in known if rival != case]
    caveat = assumed(comparison.base.fleet)
    return [*found, caveat] if caveat else found


def _against(comparison: Comparison, case: Case, other: Case) -> str:
    """A method against another: how fast it is, and how accurate at the end, seed by seed."""
    ours, theirs = (
        {run.config.seed: run.history.test for run in comparison.results[each]}
        for each in (case, other)
    )
    told = []
    for measure, what in _MEASURES.items():
        pairs = [(ours[s].get(measure), theirs[s].get(measure)) for s in ours if s in theirs]
        apart = [a - b for a, b in pairs if a is not None and b is not None]
        if apart and (measure != "loss" or not classifies(comparison)):
            told.append(_difference(what, apart, _name(other)))
    end = f"at the end {', and '.join(told)}"
    place = f"{_place(comparison, case)}{_name(case)}"
    if not classifies(comparison):
        return f"{place}: {end}."
    return f"{place} {_speed(comparison, case, other)}{f'; {end}' if told else ''}."


_MEASURES = {
    "accuracy": "its test accuracy",
    SLOWEST: "its accuracy on the slowest tenth's data",
    "loss": "its test loss",
}


def _speed(comparison: Comparison, case: Case, other: Case) -> str:
    ours, theirs = comparison.clocked(case), comparison.clocked(other)
    mine, others = _mean_to_target(ours), _mean_to_target(theirs)
    waiting = comparison.waiting(case)
    assert waiting is not None
    what = f"{100 * SHARE:g} % of {_name(waiting)}'s final accuracy"
    if comparison.goal is not None:
        what = f"an accuracy of {comparison.goal:g}"
    if mine is None:
        reached = sum(run.to_target is not None for run in ours)
        some = f" with {len(ours) - reached} of {len(ours)} seeds" if reached else ""
        return f"does not reach {what}{some}"
    if others is None:
        return f"reaches {what} after {_number(mine)} s, {_name(other)} does not"
    times = f"({_number(mine)} s against {_number(others)} s)"
    if abs(mine / others - 1) < 0.05:
        return f"reaches {what} about as fast as {_name(other)} {times}"
    if mine < others:
        fast = f"reaches {what} {_number(others / mine, 2)} times as fast as {_name(other)}"
        return f"{fast} {times}"
    slow = _number(mine / others, 2)
    return f"takes {slow} times as long as {_name(other)} to reach {what} {times}"


def _difference(what: str, apart: Sequence[float], other: str) -> str:
    mean = fmean(apart)
    if round(mean, 3) == 0:
        return f"{what} is the same as that of {other}"
    side = "higher" if mean > 0 else "lower"
    doubt = "" if all((each > 0) == (mean > 0) for each in apart) else " (not with every seed)"
    return f"{what} is {abs(mean):.3f} {side} than that of {other}{doubt}"


def _place(comparison: Comparison, case: Case) -> str:
    """The table that a sentence is about, if there are several."""
    several = [
        part
        for part in ("split", "average", "more")
        if len({getattr(each, part) for each in comparison.results}) > 1
    ]
    told = [heading(comparison.base, case, part).replace("\n", " ") for part in several]
    return f"{', '.join(told)}: " if told else ""


def _name(case: Case) -> str:
    return names.method(case.method) + (
        "" if case.batches == "equal" else f" with {case.batches} batches"
    )


def _target(comparison: Comparison) -> str:
    if comparison.goal is not None:
        return f"an accuracy of {comparison.goal:g}"
    waiting = [case for case in comparison.results if comparison.waiting(case) == case]
    if not waiting:
        return "a target (needs fedavg among the methods, or a target)"
    values = [run.target for case in waiting for run in comparison.clocked(case) if run.target]
    if not values:
        return "a target (no accuracy was measured)"
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    span = low if low == high else f"{low} to {high}, by seed"
    return f"{100 * SHARE:g} % of {names.method(waiting[0].method)}'s at the end ({span})"


def _to_target(runs: Sequence[Clocked]) -> str:
    if all(run.target is None for run in runs):
        return NOT_MEASURED
    times = [run.to_target for run in runs if run.to_target is not None]
    if not times:
        return NOT_REACHED
    if len(times) < len(runs):
        return f"{len(times)} of {len(runs)} reached"
    spread = Spread.of(times)
    assert spread is not None
    sd = f"{spread.sd:,.0f}" if spread.mean >= 99.5 else _number(spread.sd, 2)
    return _number(spread.mean) + (f" ±{sd}" if spread.count > 1 else "")


def _number(value: float, digits: int = 3) -> str:
    """So many digits, or as many as a whole number has."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) - 0.5 else f"{value:.{digits}g}"


def _mean_to_target(runs: Sequence[Clocked]) -> float | None:
    """The mean over the seeds; None unless all of them reached it."""
    times = [run.to_target for run in runs]
    return None if None in times else fmean(time for time in times if time is not None)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return NOT_MEASURED
    return f"{spread.mean:.3f}" + (f" ±{spread.sd:.3f}" if spread.count > 1 else "")


def budget(comparison: Comparison) -> str:
    """When runs ended."""
    base, several = comparison.base, swept(comparison)
    if "seconds" in several:
        return "several simulated times"
    if base.seconds is None:
        return "several numbers of rounds" if "rounds" in several else f"{base.rounds} rounds"
    most = f" or {base.rounds} rounds" if base.rounds else ""
    return f"{base.seconds:,g} s of simulated time{most}"
