"""The results of a comparison in words: who is best at the end and who is there first."""

from collections.abc import Sequence
from statistics import fmean

from salf.common.intervals import Interval, interval
from salf.report import names
from salf.report.charts import PARTS, headings, name
from salf.report.measured import at_end, spread, tested
from salf.report.tables import Table
from salf.runs.compare import SHARE, Case, Clocked, Comparison
from salf.runs.config import Config

BY, TIE = "Ahead by", " (tie)"
FEW = 20  # rounds of the reference, below which no speed-up is stated
AHEAD = "Who is ahead: paired by seed, mean and 95 % interval"


def verdict(comparison: Comparison) -> tuple[str, list[Table]]:
    """The verdict in a sentence or two; of several conditions also a table of who is ahead."""
    conditions = _conditions(comparison)
    orders = {p: order for p, cases in conditions.items() if (order := _order(comparison, cases))}
    if not orders:
        return "There is nothing to compare by.", []
    kind = "highest test accuracy" if at_end(comparison) == "accuracy" else "lowest test loss"
    waits = any(names.waits(case.method) for case in comparison.results)
    if waits and not comparison.base.fleet:
        kind += " of the methods with a deadline"
    if len(orders) == 1:
        ((place, order),) = orders.items()
        return " ".join([_best(comparison, order, kind), *_race(comparison, conditions[place])]), []
    rows = [_row(comparison, place, orders[place], conditions[place]) for place in orders]
    wins: dict[str, list[str]] = {}
    for place, (first, *_) in orders.items():
        wins.setdefault(name(first), []).append(place)
    counts = [
        f"{method} in {len(places)} of {len(orders)} conditions"
        + (f" ({places[0]})" if len(places) == 1 else "")
        for method, places in sorted(wins.items(), key=lambda each: -len(each[1]))
    ]
    ties = sum(TIE in row.get(BY, "") for row in rows)
    chance = f"; in {ties} of them a tie with the next" * bool(ties)
    return f"{kind.capitalize()}: {names.listed(counts)}{chance}.", [Table.of(rows, AHEAD)]


def _best(comparison: Comparison, order: Sequence[Case], kind: str) -> str:
    """Who is best, and how far ahead of the next."""
    mean = spread([*tested(comparison, order[0]).values()])
    if len(order) == 1:
        measured = kind.split(maxsplit=1)[1]
        return f"{name(order[0])} has a {measured} of {mean} after {budget(comparison.base)}."
    apart = _apart(comparison, *order[:2])
    by = f"ahead of {name(order[1])} by {apart.signed()}" + TIE * tied(apart)
    return f"{name(order[0])} has the {kind}, {mean}, {by}."


def tied(apart: Interval) -> bool:
    """Whether the seeds cannot tell two methods apart. One seed decides nothing."""
    return apart.mean == 0 or (apart.half is not None and apart.low <= 0 <= apart.high)


def _row(
    comparison: Comparison, place: str, order: Sequence[Case], cases: Sequence[Case]
) -> dict[str, str]:
    """Who is best under a condition, who is next and how far behind, and who is first."""
    told = [f"{name(c)} {fmean(tested(comparison, c).values()):.3f}" for c in order]
    row = {"Condition": place, "Best": told[0]}
    if order[1:]:
        apart = _apart(comparison, *order[:2])
        row |= {"Next": told[1], BY: apart.signed() + TIE * tied(apart)}
    if comparison.base.fleet and (times := _times(comparison, cases)):
        soonest = min(times, key=lambda case: times[case])
        row["First at the target"] = f"{name(soonest)} {number(times[soonest])} s"
    return row


def _conditions(comparison: Comparison) -> dict[str, list[Case]]:
    """The cases that differ in their method only, by what they have in common."""
    by = ("split", "average", "more") if comparison.base.fleet else PARTS
    found: dict[str, list[Case]] = {}
    for case in comparison.results:
        found.setdefault(", ".join(headings(comparison, case, by=by)), []).append(case)
    return found


def _order(comparison: Comparison, cases: Sequence[Case]) -> list[Case]:
    """From the best on: those with a deadline, if there are any, or on a clock all."""
    means = {case: fmean(found.values()) for case in cases if (found := tested(comparison, case))}
    order = sorted(means, key=lambda c: means[c], reverse=at_end(comparison) == "accuracy")
    rivals = [c for c in order if comparison.base.fleet or not names.waits(c.method)]
    return rivals or order


def _apart(comparison: Comparison, one: Case, other: Case) -> Interval:
    ours, theirs = tested(comparison, one), tested(comparison, other)
    return interval([value - theirs[seed] for seed, value in ours.items() if seed in theirs])


def _times(comparison: Comparison, cases: Sequence[Case]) -> dict[Case, float]:
    runs = {case: mean_time(comparison.clocked(case)) for case in cases}
    return {case: time for case, time in runs.items() if time is not None}


def _race(comparison: Comparison, cases: Sequence[Case]) -> list[str]:
    """Who reaches the target first, and how much sooner than the one that waits; on a clock."""
    if not comparison.base.fleet or all(
        run.target is None for case in cases for run in comparison.clocked(case)
    ):
        return []
    times, wanted = _times(comparison, cases), target(comparison)
    if not times:
        return [f"No method reaches {wanted}."]
    first = min(times, key=lambda case: times[case])
    found = f"{name(first)} reaches {wanted} first, after {number(times[first])} s"
    waiting = comparison.waiting(cases[0])
    if waiting is None or waiting not in times or first == waiting:
        return [f"{found}."]
    if doubt := _doubt(comparison, waiting):
        return [f"{found}. {name(waiting)} {doubt}: no speed-up is stated."]
    faster = times[waiting] / times[first]
    fast = f"{number(faster, 2)} times as fast as" if faster >= 1.05 else "about as fast as"
    return [f"{found}: {fast} {name(waiting)}."]


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
