"""A plan of deadlines in words, as a figure and as a page."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

from rich.console import Console

from salf.report import names
from salf.report.lines import Line, Lines, Mark, Point
from salf.report.lines import figure as figure_of
from salf.report.page import Chart, Code, Page, Section, again
from salf.report.style import RUST, Axis, Spec, pictures, write
from salf.report.tables import Table, tell
from salf.runs.constants import KAPPA
from salf.runs.plan import Offer, Planned
from salf.runs.search import Tried, lost

PLAN, CURVE, PICTURE, PAGE = "plan.csv", "curve.csv", "plan", "plan.html"
BOUNDS = {"theorem": "Bound of the theorem", "sharp": "Sharp bound"}
SEARCH = "Simulated accuracy"
_COLOURS = dict(zip((*BOUNDS.values(), SEARCH), ("#0072B2", "#56B4E9", RUST), strict=True))
_ABOUT = (
    "The bound is the theorem's recursion. The probability p_l that nobody reaches layer l by "
    "the deadline comes from the fleet. The bound is a worst case for convex losses and "
    "exchangeable users: it does not account for slow users that hold different data.",
    "The sharp bound is the expression in the proof of Lemma 3 that still contains the number "
    "of users that reach a layer.",
)


def print_plan(planned: Planned, console: Console) -> None:
    """Print a plan."""
    tell(console, headline(planned), constants(planned), "", table(planned), "")
    tell(console, *notes(planned), *disagreement(planned))


def write_plan(planned: Planned, out: Path, command: Sequence[str] = ()) -> list[Path]:
    """Write plan.csv and curve.csv, the figure (PNG and SVG) and the page into a folder."""
    pictured = pictures(figure(planned, titled=True), out / PICTURE)
    files = {**tables(planned, out), **pictured, out / PAGE: page(planned, command).html()}
    return write(files)


def tables(planned: Planned, out: Path) -> dict[Path, str | bytes]:
    """plan.csv and curve.csv, which need no package of the report extra."""
    return {out / PLAN: planned.schedule_csv(), out / CURVE: planned.curve_csv()}


def headline(planned: Planned) -> str:
    """The fleet, the layers and the budget."""
    config, law = planned.config, planned.law
    return (
        f"{_fleet(planned)}: {names.users(config)}, {law.timing.layers} layers, batch size "
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
    size, offer, best = planned.config.batch_size, planned.offer, planned.best
    columns = ["Chosen by", "T_max", "Rounds", "Batch", "Reach", "Bound"]
    columns += ["Accuracy"] * bool(planned.tried)

    def constant(name: str, seconds: float, rounds: int, bound: float) -> list[str]:
        reach = f"{100 * planned.law.at(seconds)[1]:.0f} %"
        cells = [name, _time(seconds), str(rounds), str(size), reach, f"{bound:.3g}"]
        return [*cells, _accuracy(planned.at(seconds))]

    rows = [
        constant(BOUNDS[form], each.deadline, each.constant.rounds, each.constant.bound)
        for form, each in planned.offers.items()
    ]
    plan = offer.schedule
    cells = [_range(offer), str(plan.rounds), str(offer.batch_size), "", f"{plan.bound:.3g}"]
    rows.append([f"{BOUNDS[planned.form]}, schedule", *cells, _accuracy(planned.followed)])
    if best is not None:
        T, bound = best.deadline, offer.problem.bound_at(best.deadline)
        rows.append(constant("Search by simulation", T, planned.rounds(T), bound))
    return Table(columns, [row[: len(columns)] for row in rows])


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
    if best is None:
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
    records, best = planned.curve(), planned.best
    shown = [BOUNDS[form] for form in planned.offers] + [SEARCH] * (best is not None)
    lines = [Line(name, _COLOURS[name]) for name in shown]
    x = Axis("T_max in seconds", log=True, domain=(records[0]["deadline"], records[-1]["deadline"]))
    chosen = [
        Mark(offer.deadline, line=BOUNDS[form], y=offer.constant.bound)
        for form, offer in planned.offers.items()
    ]
    # Next to the shortest deadline the bound is beyond all measure.
    top = 30 * min(mark.y or 0.0 for mark in chosen)
    bounds = [
        Point(BOUNDS[form], record["deadline"], value)
        for form in planned.offers
        for record in records
        if (value := record[f"bound_{form}"]) is not None and value <= top
    ]
    y = Axis("Bound on F(w) − F(w_opt)", log=True)
    draw = partial(Lines, lines=lines, x=x, widest=620, height=190)
    charts = [draw(bounds, y=y, marks=chosen)]
    if best is not None:
        tried = [
            Point(SEARCH, each.deadline, each.mean, min(each.known), max(each.known))
            for each in planned.tried
            if each.known
        ]
        marks = [replace(mark, y=None) for mark in chosen]
        marks.append(Mark(best.deadline, line=SEARCH, y=best.mean))
        y = Axis("Accuracy at the budget")
        charts.append(draw(tried, y=y, interval="bar", marks=marks))
    if not titled:
        return figure_of(*charts)
    seeds = len(best.accuracies) if best else 0
    subtitle = ["Dashed lines and filled dots: the deadline that each curve chooses."]
    subtitle += [f"Error bars: lowest to highest of {seeds} seeds."] * (seeds > 1)
    title = f"Choosing T_max for {_fleet(planned)} and a budget of {planned.budget:g} s"
    return figure_of(*charts, title=title, subtitle=subtitle)


def page(planned: Planned, command: Sequence[str] = ()) -> Page:
    """The plan as a page."""
    use = (
        f"--fleet {planned.config.fleet} --seconds {planned.budget:g} --deadline {PLAN} "
        f"--batch-size {planned.offer.batch_size}"
    )
    chart = Chart(
        figure(planned),
        "The bound and the simulated accuracy over the deadline. Dashed lines and filled dots mark "
        "the deadline that each curve chooses. A longer deadline lets more users reach more layers "
        "but leaves time for fewer rounds.",
    )
    told = disagreement(planned)
    return Page(
        f"Deadlines for {_fleet(planned)} and a budget of {planned.budget:g} seconds",
        [headline(planned)],
        [
            Section("The trade-off", [chart, table(planned), *notes(planned)]),
            *([Section("How far the bound and the simulation disagree", told)] if told else []),
            Section("The bound", [constants(planned), *_ABOUT]),
            Section(
                "Use the plan",
                [
                    f"{PLAN} contains the schedule: a deadline per round. Pass to `salf run`:",
                    Code(use),
                ],
            ),
            again(command, planned.config.to_toml()),
        ],
    )


def _accuracy(found: Tried | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:.3f}" if found.known else "diverged"


def _range(offer: Offer) -> str:
    least, most = offer.schedule.deadlines.min(), offer.schedule.deadlines.max()
    first, last = _time(least), _time(most)
    return first if first == last else f"{first.removesuffix(' s')} to {last}"


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 99.5 else f"{seconds:.3g} s"


def _fleet(planned: Planned) -> str:
    return names.fleet_name(planned.config)
