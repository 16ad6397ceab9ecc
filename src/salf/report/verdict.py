"""The results of a comparison in words: who is best at the end and who is there first."""

from collections.abc import Sequence
from statistics import fmean

from salf.report import names
from salf.report.charts import headings
from salf.report.measured import at_end, tested
from salf.runs.compare import SHARE, Case, Clocked, Comparison

FEW = 20  # rounds of the reference, below which no speed-up is stated


def verdict(comparison: Comparison) -> list[str]:
    """A sentence or two for each table."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    clocked = bool(comparison.base.fleet)
    for case in comparison.results:
        ratio = None if clocked else case.stragglers
        groups.setdefault((case.split, case.average, case.more, ratio), []).append(case)
    said = []
    for cases in groups.values():
        by = ("split", "average", "more") if clocked else ("split", "average", "more", "stragglers")
        place = ", ".join(headings(comparison, cases[0], by=by))
        told = [_best(comparison, cases), _race(comparison, cases) if clocked else ""]
        if any(told) and len(cases) > 1:
            said.append(f"{place}: " * bool(place) + " ".join(filter(None, told)))
    return said


def _best(comparison: Comparison, cases: Sequence[Case]) -> str:
    """Who has the highest accuracy at the end, or the lowest loss, and what the others have."""
    measured = {case: found for case in cases if (found := tested(comparison, case))}
    means = {case: fmean(found.values()) for case, found in measured.items()}
    rivals = [case for case in means if comparison.base.fleet or not names.waits(case.method)]
    if len(means) < 2 or not rivals:
        return ""
    highest = at_end(comparison) == "accuracy"
    order = sorted(means, key=lambda case: means[case], reverse=highest)
    first = next(case for case in order if case in rivals)
    told, doubts = [], []
    for case in [case for case in order if case != first]:
        waits = " (waits)" * (names.waits(case.method) and case not in rivals)
        told.append(f"{name(case)}{waits} {means[case]:.3f}")
        signs = {
            ours > measured[case][seed]
            for seed, ours in measured[first].items()
            if measured[case].get(seed, ours) != ours
        }
        doubts += [name(case)] * (len(signs) > 1)
    kind = "highest test accuracy" if highest else "lowest test loss"
    some = " of the methods with a deadline" * (len(rivals) < len(means))
    doubt = f"; not with every seed ahead of {names.listed(doubts)}" if doubts else ""
    return f"{name(first)} has the {kind}{some}, {means[first]:.3f} ({', '.join(told)}{doubt})."


def _race(comparison: Comparison, cases: Sequence[Case]) -> str:
    """Who reaches the target, and when."""
    runs = {case: comparison.clocked(case) for case in cases}
    waiting = comparison.waiting(cases[0])
    if all(r.target is None for each in runs.values() for r in each):
        return ""
    times = {case: t for case, each in runs.items() if (t := mean_time(each)) is not None}
    order = sorted(times, key=lambda case: times[case])
    missing = []
    for case in cases:
        reached = sum(run.to_target is not None for run in runs[case])
        if case not in times:
            some = f" with {reached} of {len(runs[case])} seeds only" if reached else ""
            missing.append(f"{name(case)}{some}")
    wanted = target(comparison)
    if not order:
        return f"No method reaches {wanted}."
    found = f"{name(order[0])} reaches {wanted} first, after {number(times[order[0]])} s"
    if len(order) > 1:
        found += f" ({', '.join(f'{name(each)} {number(times[each])} s' for each in order[1:])})"
    if missing:
        found += f"; not reached by {names.listed(missing)}"
    if waiting is None or waiting not in times or order[0] == waiting:
        return f"{found}."
    if doubt := _doubt(comparison, waiting):
        return f"{found}. {name(waiting)} {doubt}: no speed-up is stated."
    faster = times[waiting] / times[order[0]]
    fast = f"{number(faster, 2)} times as fast as" if faster >= 1.05 else "about as fast as"
    return f"{found}: {fast} {name(waiting)}."


def _doubt(comparison: Comparison, waiting: Case) -> str:
    """Why times to reach what the reference reached say little."""
    rounds = fmean(run.rounds for run in comparison.clocked(waiting))
    if rounds < FEW:
        return f"had only {rounds:.0f} rounds"
    voices = [run.summary.get("voice") or {} for run in comparison.results[waiting]]
    chance = max((max(voice.get("data") or [0.0]) for voice in voices), default=0.0)
    if fmean(tested(comparison, waiting).values() or [1.0]) < 2 * chance:
        return "is barely better than guessing"
    return ""


def target(comparison: Comparison) -> str:
    """The accuracy to reach, in words."""
    if comparison.goal is not None:
        return f"an accuracy of {comparison.goal:g}"
    waiting = [case for case in comparison.results if comparison.waiting(case) == case]
    values = [run.target for case in waiting for run in comparison.clocked(case) if run.target]
    if not values:
        return "a target (needs fedavg among the methods, or a target)"
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    span = low if low == high else f"{low} to {high}, by seed"
    return f"{100 * SHARE:g} % of {names.method(waiting[0].method)}'s final accuracy ({span})"


def mean_time(runs: Sequence[Clocked]) -> float | None:
    """The mean time to the target; None unless all seeds reached it."""
    times = [run.to_target for run in runs if run.to_target is not None]
    return fmean(times) if len(times) == len(runs) else None


def name(case: Case) -> str:
    """A method with its batches."""
    return names.variant(case.method, case.batches)


def number(value: float, digits: int = 3) -> str:
    """So many digits, or as many as a whole number has."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) - 0.5 else f"{value:.{digits}g}"
