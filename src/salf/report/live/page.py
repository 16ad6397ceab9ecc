"""A live run as a page: its result, how far users got, and which updates were rejected."""

from pathlib import Path
from textwrap import shorten

from salf.common.files import write_whole
from salf.report import names
from salf.report.charts import MEASURES, Measure
from salf.report.live import charts
from salf.report.live.run import LiveRun, Unused, answers, unused
from salf.report.page import Block, Chart, Page, Section, again
from salf.report.tables import Table

PAGE = "live.html"
_MOST_REASONS = 30
_LONGEST_REASON = 110  # characters: it stands in one line


def write_live_page(folder: Path) -> Path:
    """Write the page of the live run in this folder, finished or not, and return its path."""
    write_whole(folder / PAGE, page(LiveRun.of(folder), folder).html())
    return folder / PAGE


def page(run: LiveRun, folder: Path) -> Page:
    """The run as a page."""
    method, config = names.method(run.config.method), run.config
    how = again(["replay", str(folder)], config.to_toml())
    return Page(
        title=f"{method} live on {config.data}",
        intro=[f"{_what(run)} {_how_it_ended(run)}"],
        sections=[
            _curve_section(run),
            _progress_section(run),
            _layers_section(run),
            _durations_section(run),
            _users_section(run),
            _unused_section(run),
            Section("Replay it", ["Replay the recorded depths in the simulator:", *how.blocks]),
        ],
    )


def _what(run: LiveRun) -> str:
    config = run.config
    time = "in rounds that wait for all users"
    if isinstance(config.deadline, str):
        used = [done.deadline for done in run.records if done.deadline is not None]
        low, high = (names.duration(seconds) for seconds in (min(used[-20:]), max(used[-20:])))
        last = low if low == high else f"{low} to {high}"
        time = f"with T_max set by --deadline {config.deadline}: {last} in the last rounds"
    elif config.deadline is not None and not names.waits(config.method):
        time = f"with T_max = {names.duration(config.deadline)} per round"
    return (
        f"{names.method(config.method)} trains the model {config.model} on {config.data} with "
        f"{_count(config.users, 'user')}, {time}."
    )


def _how_it_ended(run: LiveRun) -> str:
    seconds = names.duration(sum(done.seconds for done in run.records))
    rounds = len(run.records)
    if run.summary is None:
        return f"Not finished: {rounds:,} of {run.config.rounds:,} rounds in {seconds}."
    accuracy = run.summary["test_accuracy"]
    reached = "was not measured" if accuracy is None else f"is {accuracy:.4f}"
    return f"Its test accuracy {reached} after {_count(rounds, 'round')} in {seconds}."


def _curve_section(run: LiveRun) -> Section:
    """Accuracy, unless it was never measured (there may be no held-out data)."""
    measure: Measure
    for measure in ("accuracy", "train_loss"):
        if (spec := charts.curve(run, measure)) is not None:
            break
    else:
        return Section(
            f"{MEASURES['accuracy']} over time",
            ["No accuracy or loss was measured: no user has answered in time."],
        )
    title = MEASURES[measure]
    missing = "No accuracy has been measured; this is the loss. " * (measure == "train_loss")
    chart = Chart(
        spec,
        f"{title} over the seconds of {_count(len(run.records), 'round')}.",
        f"{missing}{title} over the total duration of the rounds, without the time between them. "
        "The axis may not start at zero.",
    )
    return Section(f"{title} over time", [chart])


def _progress_section(run: LiveRun) -> Section:
    shown, there = len(charts.shown_users(run)), len(run.users)
    some = f"{shown} of the {there:,} users are shown. " * (shown < there)
    stopped = (
        "Every round waits for all users; no user is stopped early."
        if names.waits(run.config.method)
        else "Backpropagation starts at the last layer. A user stopped by the deadline sends "
        "the layers it has completed."
    )
    chart = Chart(
        charts.progress(run),
        f"Share of the layers each of {shown} users reached, over {len(run.records)} rounds.",
        f"{some}Mean share of the layers that a user reached; blank where it was not "
        "asked. A user that sent nothing, or whose update was rejected, reached no layer.",
    )
    return Section("How far each user got", [stopped, chart])


def _layers_section(run: LiveRun) -> Section:
    said = "Number of updates per layer, from the input to the output; mean over the rounds."
    caption = said
    if run.config.method == "drop":
        caption += " Drop uses only the updates of users that finished."
    if run.records[-1].unreached:
        caption += (
            " p is p_l, the probability that nobody reaches the layer: the layer's last step was "
            "divided by 1\u00a0−\u00a0p_l."
        )
    return Section("Updates per layer", [Chart(charts.layers(run), said, caption)])


def _durations_section(run: LiveRun) -> Section:
    limited = [done for done in run.records if done.limit is not None]
    over = [done for done in limited if done.limit is not None and done.seconds > done.limit]
    if not limited:
        kept = "No round had a limit."
    elif not over:
        kept = "Every round closed within T_max plus the grace period."
    else:
        kept = (
            f"{len(limited) - len(over):,} of {len(limited):,} rounds closed within T_max plus the "
            f"grace period, and {len(over):,} did not."
        )
    learned = (
        " The grace period (the time for messages) is learned from the first answers and is long "
        "until then."
        if limited and run.config.grace is None
        else ""
    )
    caption = "Time from sending the requests to the new model, on a logarithmic axis."
    if len(run.records) > charts.MOST_ROUNDS:
        caption += " A dot is the slowest of several consecutive rounds, or a round over its limit."
    said = f"Duration of {_count(len(run.records), 'round')} and their limits. {kept}"
    chart = Chart(charts.durations(run), said, caption)
    return Section("Round durations", [kept + learned, chart])


def _users_section(run: LiveRun) -> Section:
    columns = ["User", "Asked", "Finished", "Partial", "Nothing", "Silent", "Rejected"]
    rows = []
    for user, its in answers(run).items():
        counts = (its.asked, its.finished, its.partial, its.nothing, its.silent, its.not_used)
        rows.append([run.users[user], *(f"{count:,}" for count in counts)])
    what = (
        "Rounds in which a user was asked, by outcome: it finished, reached some layers, "
        "completed no layer, did not answer in time, or sent an update that was rejected."
    )
    return Section("How each user's rounds went", [what, Table(columns, rows)])


def _unused_section(run: LiveRun) -> Section:
    found = unused(run)
    blocks: list[Block] = []
    if run.late:
        came = "update came" if run.late == 1 else "updates came"
        blocks.append(f"{run.late:,} {came} after the round had closed, too late to be used.")
    if not found:
        blocks.append("No update that arrived in time was rejected.")
    else:
        columns = ["Reason", "User", "Times", "First round", "Last round"]
        blocks.append(Table(columns, [_unused_row(its) for its in found[:_MOST_REASONS]]))
    if more := found[_MOST_REASONS:]:
        times = sum(its.times for its in more)
        blocks.append(
            f"And {len(more):,} more reasons, {_count(times, 'time')} in all. All are listed in "
            "the run's log, live.log."
        )
    return Section("Rejected updates", blocks)


def _unused_row(its: Unused) -> list[str]:
    reason = shorten(its.reason, _LONGEST_REASON, placeholder=" …")
    return [reason, its.user, *(f"{number:,}" for number in (its.times, its.first, its.last))]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
