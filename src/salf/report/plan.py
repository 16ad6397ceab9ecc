"""A plan of deadlines in words, as a figure and as a page."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from shlex import join
from typing import Any

from rich.console import Console

from salf.common.files import write_whole
from salf.report import names
from salf.report.extra import check_extra, optional
from salf.report.page import Block, Chart, Code, Page, Section
from salf.report.style import SOFT, Spec, legend, pictures, spec
from salf.report.tables import Cell, Table
from salf.runs.constants import KAPPA
from salf.runs.offers import Offer
from salf.runs.plan import Planned
from salf.runs.search import Tried, lost

PLAN, CURVE, PICTURE, PAGE = "plan.csv", "curve.csv", "plan", "plan.html"
BOUNDS = {"theorem": "Bound of the theorem", "sharp": "Sharp bound"}
SEARCH = "Simulated accuracy"
_COLOURS = {"theorem": "#0072B2", "sharp": "#56B4E9", "search": "#D55E00"}


def print_plan(planned: Planned, console: Console) -> None:
    """Print a plan."""
    for line in (headline(planned), constants(planned)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(table(planned).rich(fold=console.is_terminal), crop=False)
    console.print()
    for line in (*notes(planned), *disagreement(planned)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_plan(planned: Planned, out: Path, command: Sequence[str] = ()) -> list[Path]:
    """Write plan.csv and curve.csv, the figure (PNG and SVG) and the page into a folder."""
    check_extra()
    drawn = pictures(figure(planned, titled=True))
    # All are made before the first is written, so that an error leaves none behind.
    files: dict[Path, Any] = {
        **tables(planned, out),
        **{out / f"{PICTURE}.{kind}": content for kind, content in drawn.items()},
        out / PAGE: page(planned, command).html(),
    }
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def tables(planned: Planned, out: Path) -> dict[Path, str]:
    """plan.csv and curve.csv, which need no package of the report extra."""
    return {out / PLAN: planned.schedule_csv(), out / CURVE: planned.curve_csv()}


def headline(planned: Planned) -> str:
    """What was planned for."""
    config, law = planned.config, planned.law
    return (
        f"{config.fleet}: {names.users(config)}, {law.timing.layers} layers, batch size "
        f"{config.batch_size}, budget {planned.budget:g} s."
    )


def constants(planned: Planned) -> str:
    """The bound's constants, and where each comes from."""
    found, given = planned.constants, planned.estimates.given

    def of(name: str, otherwise: str = "estimated") -> str:
        return "given" if name in given else otherwise

    rho_s = of("rho_s", "at least rho_c" if "rho_c" in given else "estimated")
    values = [
        f"rho_c = {found.rho_c:.3g} ({of('rho_c', f'assumed to be rho_s/{KAPPA:g}')})",
        f"rho_s = {found.rho_s:.3g} ({rho_s})",
        f"G^2 = {found.G2:.3g} ({of('g2')})",
        f"sigma^2 = {found.sigma2[0]:.3g} ({of('sigma2')})",
        f"Gamma = {found.Gamma:.3g} ({of('gap', 'assumed')})",
        f"|w_1 - w_opt|^2 = {planned.estimates.distance2:.3g} ({of('distance2')})",
    ]
    return f"Constants (estimates are from gradients at initialisation): {', '.join(values)}."


def table(planned: Planned) -> Table:
    """A row for each choice."""
    searched = bool(planned.tried)
    columns = ["Chosen by", "T_max", "Rounds", "Batch", "Reach", "Bound"]
    rows: list[list[str | Cell]] = []

    def add(name: str, deadline: str, cells: Sequence[str], found: Tried | None) -> None:
        accuracy = [_accuracy(found)] if searched else []
        rows.append([name, deadline, *cells, *accuracy])

    size = str(planned.config.batch_size)
    for form, offer in planned.offers.items():
        cells = [str(offer.constant.rounds), size, _reach(planned, offer.deadline)]
        bound = f"{offer.constant.bound:.3g}"
        add(BOUNDS[form], _time(offer.deadline), [*cells, bound], planned.at(offer.deadline))
    offer = planned.offer
    plan = offer.schedule
    add(
        f"{BOUNDS[planned.form]}, schedule",
        _range(offer),
        [str(plan.rounds), str(offer.batch_size), "", f"{plan.bound:.3g}"],
        planned.followed,
    )
    if (best := planned.best) is not None and best.deadline is not None:
        value = offer.problem.bound_at(best.deadline)
        cells = [str(planned.rounds(best.deadline)), size, _reach(planned, best.deadline)]
        add("Search by simulation", _time(best.deadline), [*cells, f"{value:.3g}"], best)
    return Table.of([*columns, *(["Accuracy"] if searched else [])], rows)


def notes(planned: Planned) -> list[str]:
    """Notes on the plan that the bound gives."""
    offer, size = planned.offer, planned.config.batch_size
    found = [
        f"The schedule uses batch size {offer.batch_size}, which is m = "
        f"{offer.batch_size / size:.3g} times {size}."
    ]
    if not offer.problem.is_proven:
        largest = 1 / (4 * offer.problem.constants.rho_s)
        found.append(
            f"The learning rate is above 1/(4 rho_s) = {largest:.3g}. The bound is not proven for "
            "this run; treat its minimum as a rule of thumb."
        )
    return found


def disagreement(planned: Planned) -> list[str]:
    """How far bound and simulation disagree; nothing without a search."""
    best = planned.best
    if best is None or best.deadline is None:
        return []
    found, seeds = [], len(best.accuracies)
    for form, offer in planned.offers.items():
        tried = planned.at(offer.deadline)
        assert tried is not None
        what = f"{BOUNDS[form]}: T_max = {_time(offer.deadline)}"
        if tried is best:
            found.append(f"{what}, which is also the search's best.")
        else:
            off, error = lost(best, tried)
            spread = f" ± {error:.3f}" if seeds > 1 and error < 1 else ""
            found.append(
                f"{what}, {offer.deadline / best.deadline:.2g} times the search's "
                f"{_time(best.deadline)}; following it costs {off:.3f}{spread} of accuracy "
                f"({tried.mean:.3f} instead of {best.mean:.3f})."
            )
        rank = planned.rank_correlation(form)
        if not isnan(rank):
            found[-1] += f" Rank correlation of low bound and high accuracy: {rank:.2f}."
    if best in (planned.tried[0], planned.tried[-1]):
        end = "shortest" if best is planned.tried[0] else "longest"
        found.append(f"The search's best deadline is the {end} one it tried. Try other deadlines.")
    alike = planned.alike()
    if len(alike) > 1:
        found.append(
            f"All deadlines within one standard error of the best are between {_time(alike[0])} "
            f"and {_time(alike[-1])}."
        )
    if any(None in each.accuracies for each in planned.tried):
        found.append("Training diverged in some runs of the search; these are left out.")
    return found


def figure(planned: Planned, titled: bool = False) -> Spec:
    """The bound and the simulated accuracy over T_max, each with its best deadline marked."""
    alt = optional("altair")
    records = planned.curve()
    ends = [records[0]["deadline"], records[-1]["deadline"]]
    x = alt.X(
        "x:Q",
        title="T_max in seconds",
        scale=alt.Scale(type="log", domain=ends, nice=False),
        axis=alt.Axis(format="~g", tickCount=8),
    )
    shown = [*BOUNDS.values(), *([SEARCH] if planned.tried else [])]
    colours = alt.Color(
        "line:N",
        scale=alt.Scale(domain=shown, range=list(_COLOURS.values())[: len(shown)]),
        legend=legend(columns=3),
    )
    marks: list[dict[str, Any]] = [
        {"x": offer.deadline, "y": offer.constant.bound, "line": BOUNDS[form]}
        for form, offer in planned.offers.items()
    ]
    bounds = [
        {"x": record["deadline"], "y": value, "line": BOUNDS[form]}
        for form in planned.offers
        for record in records
        if (value := record[f"bound_{form}"]) is not None
    ]
    # Next to the shortest deadline the bound is beyond all measure.
    top = 30 * min(mark["y"] for mark in marks)
    bounds = [each for each in bounds if each["y"] <= top]

    def chart(data: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.InlineData(data)).encode(x=x, color=colours)

    y = alt.Y(
        "y:Q",
        title="Bound on F(w) − F(w_opt)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format="~g", tickCount=5),
    )
    rules = chart(marks).mark_rule(strokeDash=[4, 3], strokeWidth=1.2)
    panels = [
        alt.layer(
            rules,
            chart(bounds).mark_line(strokeWidth=2).encode(y=y),
            chart(marks).mark_point(filled=True, size=90, opacity=1).encode(y=y, tooltip=_tip()),
        ).properties(width=620, height=190)
    ]
    if (best := planned.best) is not None:
        tried = [
            {
                "x": each.deadline,
                "y": each.mean,
                "low": min(each.known),
                "high": max(each.known),
                "line": SEARCH,
            }
            for each in planned.tried
            if each.known
        ]
        y = alt.Y("y:Q", title="Accuracy at the budget", scale=alt.Scale(zero=False))
        chosen = [{"x": best.deadline, "y": best.mean, "line": SEARCH}]
        base = chart(tried)
        panels.append(
            alt.layer(
                rules,
                chart(chosen).mark_rule(strokeDash=[4, 3], strokeWidth=1.2),
                base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y="low:Q", y2="high:Q"),
                base.mark_line(strokeWidth=2).encode(y=y),
                base.mark_point(filled=False, size=40, opacity=1).encode(y=y, tooltip=_tip()),
                chart(chosen).mark_point(filled=True, size=110, opacity=1).encode(y=y),
            ).properties(width=620, height=190)
        )
    whole = alt.vconcat(*panels, spacing=18)
    if titled:
        seeds = len(best.accuracies) if best else 0
        subtitle = [
            "Dashed lines and filled dots: the deadline that each curve chooses.",
            *([f"Error bars: lowest to highest of {seeds} seeds."] * (seeds > 1)),
        ]
        title = alt.Title(
            f"Choosing T_max for {planned.config.fleet} and a budget of {planned.budget:g} s",
            subtitle=subtitle,
            anchor="start",
            offset=12,
            subtitleColor=SOFT,
        )
        whole = whole.properties(title=title)
    return spec(whole)


def page(planned: Planned, command: Sequence[str] = ()) -> Page:
    """The plan as a page."""
    config = planned.config
    use = (
        f"--fleet {config.fleet} --seconds {planned.budget:g} --deadline {PLAN} --batch-size "
        f"{planned.offer.batch_size}"
    )
    trade: list[Block] = [
        Chart(
            figure(planned),
            "The bound and the simulated accuracy over the deadline. The table lists the deadlines "
            "chosen.",
            "Dashed lines and filled dots mark the deadline that each curve chooses. A longer "
            "deadline lets more users reach more layers but leaves time for fewer rounds.",
            f"{PICTURE}.svg",
        ),
        table(planned),
        *notes(planned),
    ]
    again: list[Block] = [
        Code(join(["salf", *command])) if command else "Created in Python with `salf.plan`.",
        Code(config.to_toml(), "Config"),
    ]
    sections = [Section("The trade-off", trade)]
    if told := disagreement(planned):
        sections.append(Section("How far the bound and the simulation disagree", told))
    sections += [
        Section("The bound", [constants(planned), *_about()]),
        Section(
            "Use the plan",
            [f"{PLAN} contains the schedule: a deadline per round. Pass to `salf run`:", Code(use)],
        ),
        Section("Reproduce this page", again),
    ]
    title = f"Deadlines for {config.fleet} and a budget of {planned.budget:g} seconds"
    return Page(title=title, intro=[headline(planned)], sections=sections)


def _about() -> list[str]:
    return [
        "The bound is the theorem's recursion. The probability p_l that nobody reaches layer l by "
        "the deadline comes from the fleet. The bound is a worst case for convex losses and "
        "exchangeable users: it does not account for slow users that hold different data.",
        "The sharp bound is the expression in the proof of Lemma 3 that still contains the number "
        "of users that reach a layer.",
    ]


def _tip() -> list[Any]:
    alt = optional("altair")
    return [
        alt.Tooltip("line:N", title="Chosen by"),
        alt.Tooltip("x:Q", title="T_max in seconds", format=".3~g"),
        alt.Tooltip("y:Q", title="Value", format=".4~g"),
    ]


def _accuracy(found: Tried | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:.3f}" if found.known else "diverged"


def _reach(planned: Planned, deadline: float) -> str:
    return f"{100 * planned.law.at(deadline)[1]:.0f} %"


def _range(offer: Offer) -> str:
    least, most = offer.schedule.deadlines.min(), offer.schedule.deadlines.max()
    first, last = _time(least), _time(most)
    return first if first == last else f"{first.removesuffix(' s')} to {last}"


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 99.5 else f"{seconds:.3g} s"
