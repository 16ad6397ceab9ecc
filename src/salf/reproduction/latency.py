"""Accuracy against the deadline: as the paper maps deadlines to depths, and by layers' times."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from salf.depth import parse
from salf.experiments.config import Config
from salf.report import names
from salf.report.page import Block
from salf.report.tables import Cell, Table
from salf.reproduction import curves
from salf.reproduction.comparisons import HEADINGS, ONE_SEED, far_apart
from salf.reproduction.curves import Point
from salf.reproduction.deadlines import (
    FULL_PASS,
    layer_shares,
    straggler_share,
    timed_depths,
    timing,
)
from salf.reproduction.item import Found, Item, Outcome, Remember
from salf.reproduction.latency_claims import (
    PLACES,
    STATED_LOSS,
    Panel,
    findings,
    percent,
    percents,
    place_name,
)
from salf.reproduction.presets import METHODS, WITH_DEADLINE, Preset
from salf.reproduction.statistics import interval, over_seeds

# How deep the stragglers get.
MAPPINGS = {
    "uniform": "As the paper maps it:\nstragglers' depths uniform",
    "timed": "Not in the paper:\nstragglers' depths by the layers' times",
}


class Latency(Item):
    """Fig. [latency]: the CNN's test accuracy over T_max."""

    name: ClassVar[str] = "fig-latency"
    title: ClassVar[str] = "Accuracy against the deadline, CNN on MNIST"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Config]:
        """All methods at all deadlines, in both mappings, averaged both ways."""
        shares = layer_shares(remember(timing(preset))["seconds"])
        return [
            *vanilla_configs(preset),
            *(run for runs in _configs(preset, shares).values() for run in runs),
        ]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """Four panels, and what the paper says about one of them."""
        times = remember(timing(preset))
        shares = layer_shares(times["seconds"])
        configs = _configs(preset, shares)
        vanilla = found.accuracies(vanilla_configs(preset))
        panels = {
            (mapping, average): Panel(
                vanilla,
                {
                    (method, deadline): found.accuracies(
                        configs[mapping, average, method, deadline]
                    )
                    for method in WITH_DEADLINE
                    for deadline in preset.deadlines
                },
            )
            for mapping, average in PLACES
        }
        config = preset.configs["cnn"]
        deadlines = names.listed([f"{deadline:g}" for deadline in sorted(preset.deadlines)])
        return Outcome(
            rows=_rows(preset, found, configs),
            figure=_figure(preset, panels),
            description="Test accuracy of each method over the deadline in microseconds, in four "
            "panels: averaged as published and as the equations say, with depths as the paper "
            "maps deadlines to them and with depths by the layers' measured times.",
            caption="Test accuracy at the end over the deadline. Dashed: FedAvg, which has none. "
            + ("Vertical bars: 95 % interval of the mean." if preset.seeds > 1 else "One seed."),
            findings=findings(panels, "" if preset.seeds > 1 else ONE_SEED),
            intro=f"CNN, {config.rounds} rounds, {over_seeds(preset.seeds)}, at deadlines T_max of "
            f"{deadlines} µs. A full backward pass takes {FULL_PASS} µs, and a share "
            f"1 − T_max/{FULL_PASS} of the users are stragglers (none above): the paper's linear "
            "map, which stands in a comment of its source. Their depths are uniform, so that some "
            "finish all the same. The "
            "right column is not in the paper: that share of users is late if a user's full pass "
            f"takes a time τ, uniform up to {FULL_PASS} µs, and then the late ones have completed "
            "the layers whose part of τ fits into T_max, by the layers' backward times as "
            "measured on this machine. As many straggle, only their depths differ. The verdicts "
            "are of the panel the paper shows, top left; with each is said what the others give.",
            blocks=_blocks(preset, panels, times["kinds"], shares),
        )


def vanilla_configs(preset: Preset) -> list[Config]:
    """FedAvg, which no deadline changes."""
    return [preset.config("cnn", "fedavg", "reached", 0.0, seed) for seed in range(preset.seeds)]


def config_at(
    preset: Preset,
    mapping: str,
    shares: Sequence[float],
    average: str,
    method: str,
    *,
    deadline: float,
    seed: int,
) -> Config:
    """One run. Where everybody finishes there is nothing to map."""
    config = preset.config("cnn", method, average, straggler_share(deadline), seed)
    if mapping == "timed" and deadline < FULL_PASS:
        return config.changed(depth=timed_depths(deadline, shares))
    return config


Key = tuple[str, str, str, float]  # mapping, average, method, deadline


def _configs(preset: Preset, shares: Sequence[float]) -> dict[Key, list[Config]]:
    return {
        (mapping, average, method, deadline): [
            config_at(preset, mapping, shares, average, method, deadline=deadline, seed=seed)
            for seed in range(preset.seeds)
        ]
        for mapping, average in PLACES
        for deadline in preset.deadlines
        for method in WITH_DEADLINE
    }


def _figure(preset: Preset, panels: Mapping[tuple[str, str], Panel]) -> dict[str, Any]:
    points = []
    for (mapping, average), panel in panels.items():
        place = {"column": MAPPINGS[mapping], "row": HEADINGS[average]}
        for deadline in preset.deadlines:
            for method in METHODS:
                seeds = panel.vanilla if names.waits(method) else panel.accuracies[method, deadline]
                if seeds is not None:
                    points.append(Point(names.method(method), deadline, interval(seeds), **place))
    config = preset.configs["cnn"]
    return curves.chart(
        points,
        curves.method_lines(METHODS),
        title="CNN on MNIST: test accuracy against the deadline",
        subtitle=[
            f"{config.users} users, {config.rounds} rounds, {over_seeds(preset.seeds)}; "
            f"preset {preset.name}. "
            f"A full backward pass takes {FULL_PASS} µs. FedAvg has no deadline."
        ],
        x="Deadline T_max in µs",
        y="Test accuracy",
        ticks=preset.deadlines,
        dots=True,
    )


def _rows(
    preset: Preset, found: Found, configs: Mapping[Key, Sequence[Config]]
) -> list[dict[str, Any]]:
    shown: list[tuple[str, float | None, Config]] = [
        ("", None, config) for config in vanilla_configs(preset)
    ]
    shown += [
        (mapping, deadline, config)
        for (mapping, _, _, deadline), seeds in configs.items()
        for config in seeds
    ]
    return [
        {
            **curves.run_columns(config),
            "mapping": mapping,
            "deadline": deadline,
            "accuracy": run.history.test_accuracy,
        }
        for mapping, deadline, config in shown
        if (run := found.run(config)) is not None
    ]


def _blocks(
    preset: Preset,
    panels: Mapping[tuple[str, str], Panel],
    kinds: Sequence[str],
    shares: Sequence[float],
) -> list[Block]:
    tightest = min(preset.deadlines)
    if tightest >= FULL_PASS:
        return []
    losses = Table(
        ["Method", "Paper", *(place_name(*place) for place in PLACES)],
        [
            [
                Cell(names.method(method)),
                Cell(percent(stated)),
                *(Cell(_loss(panels[place].loss(method, tightest))) for place in PLACES),
            ]
            for method, stated in STATED_LOSS.items()
        ],
        f"What is lost at {tightest:g} µs, as a share of FedAvg's accuracy",
    )
    return [
        losses,
        *_far_apart(panels, tightest),
        _reach_table(preset, tightest, kinds, shares),
    ]


def _loss(loss: Sequence[float] | None) -> str:
    return "–" if loss is None else percents(loss)


def _far_apart(panels: Mapping[tuple[str, str], Panel], deadline: float) -> list[Block]:
    """One sentence for each accuracy behind the losses whose mean says little."""
    # By seeds, because how deep stragglers get is nothing to Drop and HeteroFL.
    names_of: dict[tuple[float, ...], str] = {}
    for place, panel in panels.items():
        for method in WITH_DEADLINE:
            point = panel.at(method, deadline)
            if point.seeds is not None:
                name = f"{point.name}, {place_name(*place).lower()}"
                names_of.setdefault(tuple(point.seeds), name)
    told = (far_apart(name, seeds) for seeds, name in names_of.items())
    return [sentence for sentence in told if sentence]


def _reach_table(
    preset: Preset, deadline: float, kinds: Sequence[str], shares: Sequence[float]
) -> Table:
    """How the two mappings differ: who gets how far."""
    users, layers = preset.configs["cnn"].users, len(shares)
    reached = [
        [
            float(law.reach_law(layer) @ np.arange(users + 1)) / users
            for layer in range(1, layers + 1)
        ]
        for law in (
            parse("mixture", users, layers, straggler_share(deadline)),
            parse(timed_depths(deadline, shares), users, layers, straggler_share(deadline)),
        )
    ]
    return Table(
        [
            "Layer",
            "Backward pass done by then",
            "Reached, as the paper maps it",
            "Reached, by the layers' times",
        ],
        [
            [Cell(f"{layer} ({kind})"), *(Cell(percent(value)) for value in values)]
            for layer, (kind, *values) in enumerate(zip(kinds, shares, *reached, strict=True), 1)
        ],
        f"Share of the users that reach a layer by {deadline:g} µs, and the layers' measured times",
    )
