"""Accuracy against the deadline: as the paper maps deadlines to depths, and by a clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction import curves
from reproduction.comparisons import HEADINGS, far_apart, one_seed
from reproduction.deadlines import FLEET, FULL_PASS, passes, straggler_share
from reproduction.item import Found, Outcome, Trained
from reproduction.latency_claims import (
    PLACES,
    STATED_LOSS,
    Panel,
    findings,
    percent,
    percents,
    place_name,
)
from reproduction.sizes import METHODS, WITH_DEADLINE, Size
from reproduction.statistics import drawn
from reproduction.texts import about, heading, text
from reproduction.verdicts import noted
from salf.common.figures import Axis, Figure, Lines, Point
from salf.common.intervals import interval, over_seeds
from salf.report import names
from salf.report.page import PageBlock
from salf.report.tables import Table
from salf.runs.config import Config
from salf.worlds.depth import Mixture

# How deep the stragglers get.
MAPPINGS = {
    "uniform": "As the paper maps it:\nstragglers' depths uniform",
    "timed": "Not in the paper:\ndepths by a simulated clock",
}
LatencyKey = tuple[str, str, str, float | None]  # mapping, average, method, deadline
VANILLA: LatencyKey = ("", "", "fedavg", None)


class Latency(Trained):
    """Fig. [latency]: the CNN's test accuracy over T_max."""

    name = "fig-latency"
    title = text("latency", "title")

    def configs(self, size: Size) -> Mapping[LatencyKey, Sequence[Config]]:
        """All methods at all deadlines, in both mappings, averaged both ways."""
        configs: dict[LatencyKey, Sequence[Config]] = {
            VANILLA: size.seeded("cnn", "fedavg", "reached", 0.0)
        }
        for mapping, average in PLACES:
            for deadline in size.deadlines:
                # Where everybody finishes there is nothing to map.
                timed = mapping == "timed" and deadline < FULL_PASS
                clock = {"fleet": FLEET, "deadline": deadline / 1e6} if timed else {}
                for method in WITH_DEADLINE:
                    runs = size.seeded("cnn", method, average, straggler_share(deadline))
                    key = mapping, average, method, deadline
                    configs[key] = [config.changed(**clock) for config in runs]
        return configs

    def outcome(self, size: Size, found: Found) -> Outcome:
        """Four panels, and what the paper says about one of them."""
        configs = self.configs(size)
        accuracies = {key: found.accuracies(runs) for key, runs in configs.items()}
        panels = {
            place: Panel(
                accuracies[VANILLA],
                {
                    (method, deadline): accuracies[*place, method, deadline]
                    for method in WITH_DEADLINE
                    for deadline in size.deadlines
                },
            )
            for place in PLACES
        }
        deadlines = names.listed([f"{deadline:g}" for deadline in sorted(size.deadlines)])
        several = size.seeds > 1
        bars = "Vertical bars: 95 % interval of the mean." if several else "One seed."
        return Outcome(
            rows=_rows(found, configs),
            figure=_figure(size, panels),
            findings=[noted(one, one_seed(size.seeds)) for one in findings(panels)],
            blocks=_blocks(size, panels),
            **about("latency", deadlines=deadlines, bars=bars, **_told(size)),
        )


def _told(size: Size) -> dict[str, Any]:
    seeds = over_seeds(size.seeds)
    return {"size": size, "config": size.configs["cnn"], "seeds": seeds, "full_pass": FULL_PASS}


def _figure(size: Size, panels: Mapping[tuple[str, str], Panel]) -> Figure:
    points = [
        Point(
            names.method(method),
            deadline,
            **drawn(interval(seeds)),
            panel=f"{MAPPINGS[mapping]}\n{HEADINGS[average]}",
        )
        for (mapping, average), panel in panels.items()
        for deadline in size.deadlines
        for method in METHODS
        if (seeds := panel.accuracies.get((method, deadline), panel.vanilla)) is not None
    ]
    chart = Lines(
        points,
        names.lines(METHODS),
        x=Axis("Deadline T_max in µs", ticks=size.deadlines, domain=(0, max(size.deadlines))),
        y=Axis("Test accuracy"),
        interval="bar",
        wrap=len({average for _, average in panels}),
    )
    return Figure([chart], **heading("latency", **_told(size)))


def _rows(found: Found, configs: Mapping[LatencyKey, Sequence[Config]]) -> list[dict[str, Any]]:
    return [
        {
            **curves.run_columns(config),
            "mapping": mapping,
            "deadline": deadline,
            "accuracy": run.history.test_accuracy,
        }
        for (mapping, _, _, deadline), seeds in configs.items()
        for config in seeds
        if (run := found.run(config)) is not None
    ]


def _blocks(size: Size, panels: Mapping[tuple[str, str], Panel]) -> list[PageBlock]:
    tightest = min(size.deadlines)
    if tightest >= FULL_PASS:
        return []
    rows = []
    for method, stated in STATED_LOSS.items():
        losses = [panels[place].loss(method, tightest) for place in PLACES]
        ours = ["–" if loss is None else percents(loss) for loss in losses]
        rows.append([names.method(method), percent(stated), *ours])
    return [
        Table(
            ["Method", "Paper", *(place_name(*place) for place in PLACES)],
            rows,
            f"What is lost at {tightest:g} µs, as a share of FedAvg's accuracy",
        ),
        *_far_apart(panels, tightest),
        _reach_table(size, tightest),
    ]


def _far_apart(panels: Mapping[tuple[str, str], Panel], deadline: float) -> list[PageBlock]:
    """One sentence for each accuracy behind the losses whose mean says little."""
    # By seeds, because Drop and HeteroFL do not depend on how deep stragglers get.
    names_of: dict[tuple[float, ...], str] = {}
    for place, panel in panels.items():
        for point in [panel.at(method, deadline) for method in WITH_DEADLINE]:
            if point.seeds is not None:
                name = f"{point.name}, {place_name(*place).lower()}"
                names_of.setdefault(tuple(point.seeds), name)
    told = (far_apart(name, seeds) for seeds, name in names_of.items())
    return [sentence for sentence in told if sentence]


def _reach_table(size: Size, deadline: float) -> Table:
    """How the two mappings differ: who gets how far."""
    layers, users = passes(), size.configs["cnn"].users
    numbers = range(1, 1 + len(layers.shares))
    mapped = Mixture(users, len(layers.shares), straggler_share(deadline))
    reached = mapped.reach(mapped.everybody).mean(axis=1).tolist()
    columns = ["Reached, as the paper maps it", "Reached, by the clock"]
    return Table(
        ["Layer", "Part of a pass until it is done", *columns],
        [
            [f"{number} ({kind})", *map(percent, values)]
            for number, kind, *values in zip(
                numbers, layers.kinds, layers.shares, reached, layers.reach(deadline), strict=True
            )
        ],
        f"Share of the users that reach a layer by {deadline:g} µs",
    )
