"""The results of a comparison in words: who is best at the end and who is there first."""

from collections.abc import Sequence
from statistics import fmean

from salf.common.intervals import interval
from salf.report import names
from salf.report.charts import PARTS, headings, name
from salf.report.measured import at_end, spread, tested
from salf.report.tables import Table
from salf.runs.compare import SHARE, Case, Clocked, Comparison
from salf.runs.config import Config

AHEAD = "Who is ahead: paired by seed, mean and 95 % interval"
BY, TIE = "Ahead by", " (tie)"
FEW = 20  # rounds of the reference, below which no speed-up is stated


def verdict(comparison: Comparison) -> list[str]:
    """A sentence or two for each condition under which methods were compared."""
    said = []
    for place, cases in _conditions(comparison).items():
        told = " ".join(filter(None, [_best(comparison, cases), _race(comparison, cases)]))
        if told and len(cases) > 1:
            said.append(f"{place}: {told}" if place else told)
    return said


def told(comparison: Comparison) -> tuple[list[str], list[Table]]:
    """The verdict in a sentence or two, and a table of it if there are several conditions."""
    conditions = _conditions(comparison)
    if len(conditions) == 1:
        return verdict(comparison) or headline(comparison), []
    rows = [_told(comparison, place, cases) for place, cases in conditions.items()]
    return headline(comparison), [Table.of(rows, AHEAD)] if any(map(len, rows)) else []


def _told(comparison: Comparison, place: str, cases: Sequence[Case]) -> dict[str, str]:
    """Who is best under a condition, who is next, and how far apart they are, seed by seed."""
    first, order = _order(comparison, cases)
    if first is None or len(order) < 2:
        return {}
    best = tested(comparison, first)
    row = {"Condition": place, "Best": f"{name(first)} {fmean(best.values()):.3f}"}
    rivals = [c for c in order if comparison.base.fleet or not names.waits(c.method)]
    if len(rivals) > 1:
        other = tested(comparison, rivals[1])
        apart = interval([ours - other[seed] for seed, ours in best.items() if seed in other])
        tie = TIE * (apart.mean == 0 or (apart.half is not None and apart.low <= 0))
        row |= {"Next": f"{name(rivals[1])} {fmean(other.values()):.3f}"}
        row |= {BY: apart.signed() + tie}
    if comparison.base.fleet:
        runs = {case: mean_time(comparison.clocked(case)) for case in cases}
        times = {case: time for case, time in runs.items() if time is not None}
        soon = min(times, key=lambda case: times[case], default=None)
        there = "none" if soon is None else f"{name(soon)} {number(times[soon])} s"
        row["First at the target"] = there
    return row


def headline(comparison: Comparison) -> list[str]:
    """The verdict at the top of a page: how often who is best, if there are many conditions."""
    conditions, told = _conditions(comparison), verdict(comparison)
    if len(conditions) == 1 and told:
        return told
    best = {place: _order(comparison, cases)[0] for place, cases in conditions.items()}
    firsts = {place: first for place, first in best.items() if first is not None}
    if not firsts:
        return []
    accurate = at_end(comparison) == "accuracy"
    kind = "Highest test accuracy" if accurate else "Lowest test loss"
    if not told:  # one method: which condition is best
        ends = {p: fmean(tested(comparison, first).values()) for p, first in firsts.items()}
        place = (max if accurate else min)(ends, key=lambda place: ends[place])
        end = spread([*tested(comparison, firsts[place]).values()])
        if len(conditions) == 1:
            after = budget(comparison.base)
            measure = kind.split(maxsplit=1)[1]
            return [f"{name(firsts[place])} has a {measure} of {end} after {after}."]
        return [f"{kind}: {end} ({', '.join(filter(None, [name(firsts[place]), place]))})."]
    wins: dict[str, list[str]] = {}
    for place, first in firsts.items():
        wins.setdefault(name(first), []).append(place)
    ties = sum(TIE in _told(comparison, *each).get(BY, "") for each in conditions.items())
    counts = [
        f"{method} in {len(places)} of {len(conditions)} conditions"
        + (f" ({places[0]})" if len(places) == 1 else "")
        for method, places in sorted(wins.items(), key=lambda each: -len(each[1]))
    ]
    some = "" if comparison.base.fleet else " of the methods with a deadline"
    chance = f"; in {ties} of them a tie with the next best" * bool(ties)
    return [f"{kind}{some}: {names.listed(counts)}{chance}."]


def _conditions(comparison: Comparison) -> dict[str, list[Case]]:
    """The cases that differ in their method only, by what they have in common."""
    by = ("split", "average", "more") if comparison.base.fleet else PARTS
    found: dict[str, list[Case]] = {}
    for case in comparison.results:
        found.setdefault(", ".join(headings(comparison, case, by=by)), []).append(case)
    return found


def _order(comparison: Comparison, cases: Sequence[Case]) -> tuple[Case | None, list[Case]]:
    """The best with a deadline (on a clock, of all), and all from the best on."""
    means = {case: fmean(found.values()) for case in cases if (found := tested(comparison, case))}
    order = sorted(means, key=lambda c: means[c], reverse=at_end(comparison) == "accuracy")
    rivals = [c for c in order if comparison.base.fleet or not names.waits(c.method)]
    return (rivals[0] if rivals else None), order


def _best(comparison: Comparison, cases: Sequence[Case]) -> str:
    """Who has the highest accuracy at the end, or the lowest loss, and what the others have."""
    first, order = _order(comparison, cases)
    if len(order) < 2 or first is None:
        return ""
    told, doubts, some, best = [], [], "", tested(comparison, first)
    for case in [case for case in order if case != first]:
        measured = tested(comparison, case)
        waits = names.waits(case.method) and not comparison.base.fleet
        some = " of the methods with a deadline" if waits else some
        told.append(f"{name(case)}{' (waits)' * waits} {fmean(measured.values()):.3f}")
        pairs = [(ours, measured.get(seed, ours)) for seed, ours in best.items()]
        doubts += [name(case)] * (len({a > b for a, b in pairs if a != b}) > 1)
    kind = "highest test accuracy" if at_end(comparison) == "accuracy" else "lowest test loss"
    doubt = f"; not with every seed ahead of {names.listed(doubts)}" if doubts else ""
    mean = fmean(best.values())
    return f"{name(first)} has the {kind}{some}, {mean:.3f} ({', '.join(told)}{doubt})."


def _race(comparison: Comparison, cases: Sequence[Case]) -> str:
    """Who reaches the target, and when; on a simulated clock."""
    if not comparison.base.fleet:
        return ""
    runs = {case: comparison.clocked(case) for case in cases}
    if all(run.target is None for each in runs.values() for run in each):
        return ""
    times = {case: t for case, each in runs.items() if (t := mean_time(each)) is not None}
    order, wanted = sorted(times, key=lambda case: times[case]), target(comparison)
    if not order:
        return f"No method reaches {wanted}."
    missing = []
    for case in (case for case in cases if case not in times):
        reached = sum(run.to_target is not None for run in runs[case])
        some = f" with {reached} of {len(runs[case])} seeds only" if reached else ""
        missing.append(f"{name(case)}{some}")
    found = f"{name(order[0])} reaches {wanted} first, after {number(times[order[0]])} s"
    if len(order) > 1:
        found += f" ({', '.join(f'{name(each)} {number(times[each])} s' for each in order[1:])})"
    if missing:
        found += f"; not reached by {names.listed(missing)}"
    waiting = comparison.waiting(cases[0])
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
    span = " to ".join(dict.fromkeys(f"{each:.3f}" for each in (min(values), max(values))))
    by = ", by seed" * (" to " in span)
    return f"{100 * SHARE:g} % of {names.method(waiting[0].method)}'s final accuracy ({span}{by})"


def budget(base: Config) -> str:
    """When runs ended."""
    if base.seconds is None:
        return f"{base.rounds} rounds"
    most = f" or {base.rounds} rounds" if base.rounds else ""
    return f"{base.seconds:,g} s of simulated time{most}"


def mean_time(runs: Sequence[Clocked]) -> float | None:
    """The mean time to the target; None unless all seeds reached it."""
    times = [run.to_target for run in runs if run.to_target is not None]
    return fmean(times) if len(times) == len(runs) else None


def number(value: float, digits: int = 3) -> str:
    """So many digits, or as many as a whole number has."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) - 0.5 else f"{value:.{digits}g}"
