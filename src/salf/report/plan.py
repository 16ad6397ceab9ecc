"""A plan in words, as a table and as a page."""

from collections.abc import Sequence

from rich.console import Console

from salf.common.figures import Figure, Line
from salf.common.intervals import Interval, interval, over_seeds
from salf.report import names
from salf.report.page import Chart, Code, Note, Page, Section, again
from salf.report.parts import accuracy_over, explained
from salf.report.tables import NONE, Table, not_reached, tell
from salf.report.texts import text
from salf.report.verdict import TIE, number, tied
from salf.runs.compare import SHARE
from salf.runs.plan import ADEL, BOUND, Planned
from salf.runs.run import Result
from salf.runs.search import Candidate

SKEWED, ABSENT = 0.4, 0.95  # from where on labels are called skewed, and below absence is said
COLUMNS = ("Run", "Rounds", "Test accuracy", "Seconds to target", "Against the choice")
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def print_plan(planned: Planned, console: Console) -> None:
    """Print the answer, the reason and the finalists."""
    tell(
        console,
        verdict(planned),
        why(planned),
        "",
        table(planned),
        "",
        note(planned),
    )


def verdict(planned: Planned) -> str:
    """What to run, what to expect of it, and what others would cost."""
    best, seconds = planned.best, planned.config.seconds
    said = f"Run {described(best)}: "
    if planned.target is not None and None not in planned.times(best):
        said += f"{planned.target:.3f} on held-out data after {_times(planned, best)} s, "
    said += f"test accuracy {_tested(planned, best)} after {seconds:,.4g} s "
    said += f"({over_seeds(len(planned.seeds))})."
    unit = "of accuracy" if planned.asked.target is None else "s"
    for what, other in {"Next best": planned.next_best, "Waiting": planned.waiting}.items():
        if other not in (None, best):
            said += f" {what}: {described(other)} ({_cost(planned, other)} {unit})."
    return said


def why(planned: Planned) -> str:
    """What decides, by the clock and the data."""
    regime, share = planned.regime, planned.regime.shares
    bound, computing = "Link" if share["links"] > 0.5 else "Compute", share["fixed"] + share["rows"]
    given = {**share, "bound": bound, "computing": computing, "slowest": regime.slowest}
    parts = [text("plan.why", **given)]
    if regime.skew is not None:
        labels = "labels are skewed" if regime.skew > SKEWED else "users have similar labels"
        parts.append(f"{labels} (total variation {regime.skew:.2f})")
    if regime.available < ABSENT:
        parts.append(f"users are absent {1 - regime.available:.0%} of the time")
    return f"{'; '.join(parts)}."


def note(planned: Planned) -> str:
    """How the numbers were made."""
    tried = len({each for each, _ in planned.race.histories})
    said = f"{tried} candidates were tried with the first seed; those behind ended early."
    if planned.target is not None:
        whose = "" if planned.asked.target else f", {SHARE:.0%} of waiting FedAvg's at the end"
        said += f" Seconds to target: until {planned.target:.3f} on held-out data{whose}."
    return f"{said} {text('plan.note')}"


def table(planned: Planned) -> Table:
    """A row for each finalist, the best first."""
    rounds = {each: f"{planned.rounds(each):.0f}" for each in planned.finalists}
    told = (_tested, _times, _cost)
    rows = [[described(e), n, *(cell(planned, e) for cell in told)] for e, n in rounds.items()]
    return Table(COLUMNS, rows)


def figure(planned: Planned) -> Figure:
    """Held-out accuracy over simulated seconds of the finalists."""
    return accuracy_over(
        "clock",
        {
            Line(described(each), colour, each.waits, each == planned.best): [
                history.rows for history in planned.histories(each)
            ]
            for each, colour in zip(planned.finalists, _COLOURS, strict=False)
        },
    )


def page(planned: Planned, command: Sequence[str] = ()) -> Page:
    """The plan as a page."""
    config = planned.config
    caption = "Held-out accuracy over simulated seconds: mean of the seeds, lowest and highest."
    runs = {
        described(each): [Result(config, history, {}) for history in planned.histories(each)]
        for each in planned.finalists
    }
    use = "Run the choice in the simulator, or with real users:"
    code = Code("salf run config.toml\nsalf live live.toml")
    chart = Chart(figure(planned), caption)
    return Page(
        f"What to run: {names.method(config.method)} on {names.fleet_name(config)}",
        [verdict(planned), why(planned)],
        [
            Section("The finalists", [table(planned), Note(note(planned)), chart]),
            *explained({n: each for n, each in runs.items() if each}, [], config.cohort_size()),
            Section("Use it", [use, code]),
            *again(command, config.to_toml()),
        ],
    )


def described(each: Candidate) -> str:
    """A candidate in words."""
    steps = f" with {each.local_steps} local steps" * (each.local_steps > 1)
    parts = [f"{names.method(each.method)}{steps}"]
    if each.note == ADEL:
        parts.append(f"deadlines and batches by {ADEL}")
    elif each.deadline is not None:
        parts.append(f"deadline {names.deadline(each.deadline)}")
        parts += [f"by {BOUND}"] * (each.note == BOUND)
    parts += [f"{each.batches} batches"] * (each.batches != "equal" and each.note != ADEL)
    parts += [each.compress] * bool(each.compress)
    parts += [] if each.lr is None else [f"lr {each.lr:g}"]
    return ", ".join(parts)


def _tested(planned: Planned, each: Candidate) -> str:
    known = [history.test_accuracy for history in planned.histories(each)]
    accuracies = [accuracy for accuracy in known if accuracy is not None]
    return str(interval(accuracies)) if accuracies else NONE


def _times(planned: Planned, each: Candidate) -> str:
    times = planned.times(each)
    known = [time for time in times if time is not None]
    return not_reached(times) or _seconds(interval(known))


def _seconds(found: Interval) -> str:
    half = "" if found.half is None else f" ±{number(found.half, 2)}"
    return f"{number(found.mean)}{half}".replace("-", "−")


def _cost(planned: Planned, other: Candidate) -> str:
    """What a finalist has more than the choice: seconds to the target, or accuracy, by seed."""
    of = planned.accuracies if planned.asked.target is None else planned.times
    both = zip(of(other), of(planned.best), strict=True)
    apart = [theirs - ours for theirs, ours in both if theirs is not None and ours is not None]
    if not apart or other == planned.best:
        return NONE
    more = interval(apart)
    told = "+" * (more.mean >= 0) + _seconds(more) if planned.asked.target else more.signed()
    return told + TIE * tied(more)
