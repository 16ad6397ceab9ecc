"""A live run as a page: its result, how far users got, and which updates were rejected."""

from pathlib import Path
from statistics import fmean
from textwrap import shorten

from salf.common.files import write_whole
from salf.report import names
from salf.report.charts import MEASURES, Measure
from salf.report.live import charts
from salf.report.live.run import LiveRun, answers, unused
from salf.report.page import Chart, Page, PageBlock, Section, again
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
    how = again(["replay", str(folder)], run.config.to_toml())
    return Page(
        f"{names.method(run.config.method)} live on {names.data(run.config.data)}",
        [f"{_what(run)} {_how_it_ended(run)}"],
        [
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
        used = [done.deadline for done in run.records if done.deadline is not None][-20:]
        low, high = (names.duration(each(used)) for each in (min, max))
        last = low if low == high else f"{low} to {high}"
        time = f"with T_max set by --deadline {config.deadline}: {last} in the last rounds"
    elif config.deadline is not None and not names.waits(config.method):
        time = f"with T_max = {names.duration(config.deadline)} per round"
    model = config.given.get("model", config.model)
    return (
        f"{names.method(config.method)} trains the model {model} on "
        f"{names.data(config.data)} with {_count(config.users, 'user')}, {time}."
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
    for measure, title in MEASURES.items():
        if (spec := charts.curve(run, measure)) is not None:
            missing = "No accuracy has been measured; this is the loss. "
            caption = (
                f"{missing * (measure == 'train_loss')}{title} over the total duration of the "
                "rounds, without the time between them. The axis may not start at zero."
            )
            return Section(f"{title} over time", [Chart(spec, caption)])
    nothing = "No accuracy or loss was measured: no user has answered in time."
    return Section(f"{MEASURES['accuracy']} over time", [nothing])


def _progress_section(run: LiveRun) -> Section:
    shown, there = len(charts.shown_users(run)), len(run.users)
    some = f"{shown} of the {there:,} users are shown. " * (shown < there)
    stopped = (
        "Every round waits for all users; no user is stopped early."
        if names.waits(run.config.method)
        else "Backpropagation starts at the last layer. A user stopped by the deadline sends "
        "the layers it has completed."
    )
    caption = (
        f"{some}Layers that a user reached, on average; blank where it was not asked. A "
        "user that sent nothing, or whose update was rejected, reached no layer."
    )
    return Section("How far each user got", [stopped, Chart(charts.progress(run), caption)])


def _layers_section(run: LiveRun) -> Section:
    said = "Number of updates per layer, from the input to the output; mean over the rounds."
    if run.config.method == "drop":
        said += " Drop uses only the updates of users that finished."
    users = [fmean(counts) for counts in zip(*(d.reached for d in run.records), strict=True)]
    columns = ["Layer", "Updates"]
    rows = [[label, f"{count:.1f}"] for label, count in zip(run.layers, users, strict=True)]
    if chances := run.records[-1].unreached:
        said += (
            " p_l is the probability that nobody reaches the layer: the layer's last step was "
            "divided by 1\u00a0−\u00a0p_l."
        )
        columns.append("p_l")
        rows = [[*row, f"{p:.2g}"] for row, p in zip(rows, chances, strict=True)]
    return Section("Updates per layer", [said, Table(columns, rows)])


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
    if limited and run.config.grace is None:
        kept += (
            " The grace period (the time for messages) is learned from the first answers and is "
            "long until then."
        )
    caption = "Time from sending the requests to the new model, on a logarithmic axis."
    if len(run.records) > charts.MOST_ROUNDS:
        caption += " A dot is the slowest of several consecutive rounds, or a round over its limit."
    return Section("Round durations", [kept, Chart(charts.durations(run), caption)])


def _users_section(run: LiveRun) -> Section:
    columns = ["User", "Asked", "Finished", "Partial", "Nothing", "Silent", "Rejected"]
    rows = [
        [run.users[user], f"{sum(its.values()):,}", *(f"{its[each]:,}" for each in columns[2:])]
        for user, its in answers(run).items()
    ]
    what = (
        "Rounds in which a user was asked, by outcome: it finished, reached some layers, "
        "completed no layer, did not answer in time, or sent an update that was rejected."
    )
    return Section("How each user's rounds went", [what, Table(columns, rows)])


def _unused_section(run: LiveRun) -> Section:
    found = unused(run)
    blocks: list[PageBlock] = []
    if late := sum(done.late for done in run.records):
        came = "update came" if late == 1 else "updates came"
        blocks.append(f"{late:,} {came} after the round had closed, too late to be used.")
    columns = ["Reason", "User", "Times", "First round", "Last round"]
    rows = [
        [
            shorten(reason, _LONGEST_REASON, placeholder=" …"),
            user,
            *(f"{number:,}" for number in (len(rounds), rounds[0], rounds[-1])),
        ]
        for (user, reason), rounds in found[:_MOST_REASONS]
    ]
    blocks.append(Table(columns, rows) if rows else "No update that arrived in time was rejected.")
    if more := found[_MOST_REASONS:]:
        times = sum(len(rounds) for _, rounds in more)
        blocks.append(
            f"And {len(more):,} more reasons, {_count(times, 'time')} in all. All are listed in "
            "the run's log, live.log."
        )
    return Section("Rejected updates", blocks)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
