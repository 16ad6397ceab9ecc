"""Lemma 3: how far SALF's step is from FedAvg's, against the bound."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import exp, log, prod
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from salf.arrivals import Floats
from salf.depth import Uniform
from salf.experiments.pool import Progress
from salf.methods.salf import SALF
from salf.report import names
from salf.report.extra import optional
from salf.report.page import Block
from salf.report.style import Spec, spec
from salf.report.tables import Cell, Table
from salf.reproduction.comparisons import ABOVE_ZERO, between
from salf.reproduction.item import Found, Item, Json, Measurement, Outcome, Remember
from salf.reproduction.lemmas import (
    errors_allowed,
    images,
    inner_products,
    rounds_of,
    source,
    weights_of,
)
from salf.reproduction.presets import Preset
from salf.reproduction.statistics import paired
from salf.reproduction.verdicts import Check, Finding, judge
from salf.theory import Federation, variance_bound

USERS = (2, 5, 10, 30, 100)
LAYERS = (1, 2, 4, 8, 16)
WIDTH = 32  # of all hidden layers
# How weights are drawn decides where in a deep network the gradients are large.
STARTS: Mapping[str, str] = {"default": "PyTorch's default weights", "he": "He's weights"}
NETWORKS = 5  # drawn for each: one network's gradients say little about others'
CONFIDENCE = 0.99  # that all intervals of variances hold the truth


class Lemma3(Item):
    """Lemma 3 [bounded_var], on the gradients of MLPs of 1 to 16 layers."""

    name: ClassVar[str] = "lemma3"
    title: ClassVar[str] = "Lemma 3: the variance of SALF's step"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Measurement]:
        """One for every number of layers, the longest first."""
        config = preset.configs["mlp"]
        return [
            Measurement(
                f"lemma3-L{layers}",
                measure,
                {
                    **source(config),
                    "batch_size": config.batch_size,
                    "layers": layers,
                    "users": list(USERS),
                    "networks": NETWORKS,
                    "draws": preset.draws,
                    "seed": 3,
                },
                work=2 + preset.draws * (8e-5 + 1.2e-5 * layers),
            )
            for layers in reversed(LAYERS)
        ]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The variances beside the bound."""
        measured = [found.measured(task) for task in self.tasks(preset, remember)]
        points = Points.of(measured)
        return Outcome(
            rows=points.records(),
            figure=_figure(points, preset),
            description="The variance of SALF's step over the number of users, measured and by "
            "the bound, for networks of 1 to 16 layers and two ways to draw their weights. The "
            "measured variance is far below the bound and falls faster.",
            caption=f"E|w̃ − w|² / (η² G²). Points: the mean over {NETWORKS} networks, with bars "
            "from the lowest to the highest. Dashed lines: the bound [bounded_var].",
            findings=findings(points),
            intro="One mini-batch gradient of every user, held fixed, for MLPs of "
            f"{names.listed([str(layers) for layers in LAYERS])} layers ({WIDTH} hidden units, "
            f"{NETWORKS} draws of the weights in each of two ways); {preset.draws:,} draws of the "
            "depths (AS4) for each number of users. G² is the largest squared norm among the "
            "gradients in hand, and η = 1: both sides have η².",
            blocks=_blocks(points),
        )


def measure(
    data: str,
    data_dir: str,
    batch_size: int,
    layers: int,
    users: Sequence[int],
    networks: int,
    draws: int,
    seed: int,
    progress: Progress,
) -> Json:
    """E |w~ - w|^2 for the first 2, 5, ... users, with its standard error, at eta = 1."""
    train, classes = (found := images(data, data_dir)).train, found.classes
    users = [count for count in users if count * batch_size <= len(train)]
    products = {
        (start, number): inner_products(
            network(train.shape, classes, layers, start, seed + number),
            train,
            max(users),
            batch_size,
            np.random.default_rng([seed, number]),
        )
        for start in STARTS
        for number in range(networks)
    }
    points: list[Json] = []
    for done, count in enumerate(users):
        law = Uniform(count, layers)
        first = {key: every[:, :count, :count] for key, every in products.items()}
        sums = {key: np.zeros(2) for key in products}  # of the squared distances, and their squares
        drawn = 0
        for rounds in rounds_of(law, draws, np.random.default_rng([seed, layers, count])):
            off = weights_of(SALF(), rounds, law.unreached()) - 1 / count
            for key, chosen in first.items():
                squares = squared_norms(off, chosen)
                sums[key] += squares.sum(), (squares**2).sum()
            drawn += len(rounds)
            progress((done + drawn / draws) / len(users))
        for (start, number), chosen in first.items():
            mean, mean_square = sums[start, number] / draws
            norms = np.diagonal(chosen, axis1=1, axis2=2)  # |g_u^l|^2 as [L, U]
            points.append(
                {
                    "start": start,
                    "network": number,
                    "users": count,
                    "layers": layers,
                    "G2": float(norms.sum(0).max()),
                    "variance": float(mean),
                    "error": float(np.sqrt((mean_square - mean**2) / (draws - 1))),
                    "layerwise": layerwise_bound(norms.max(1), count, law.unreached()),
                    "first": float(norms[0].sum() / norms.sum()),  # layer 1's share of |g|^2
                }
            )
    return {"points": points}


def squared_norms(off: Floats, products: Floats) -> Floats:
    """|sum_u off[l, u] g_u^l|^2 summed over the layers, for every draw [draws, L, U]."""
    by_layer = off.transpose(1, 0, 2)
    return np.asarray(((by_layer @ products) * by_layer).sum((0, 2)))


def layerwise_bound(norms: Floats, users: int, unreached: Floats) -> float:
    """The proof's bound if a layer's gradients are bounded by their own G_l^2, not by all of G^2.

    It is the line before the last of the proof, sum_l (4U/(U-1) + p_l) / (1 - p_l) G^2.
    """
    factors = (4 * users / (users - 1) + unreached) / (1 - unreached)
    return float(factors @ norms)


def network(
    shape: tuple[int, ...], classes: int, layers: int, start: str, seed: int
) -> nn.Sequential:
    """An MLP of so many layers."""
    widths = [prod(shape), *[WIDTH] * (layers - 1), classes]
    modules: list[nn.Module] = [nn.Flatten()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for inputs, outputs in pairwise(widths):
            linear = nn.Linear(inputs, outputs)
            if start == "he":
                nn.init.kaiming_normal_(linear.weight)
                nn.init.zeros_(linear.bias)
            modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


class Points:
    """All measured variances, by (start, L, U): one for each network."""

    def __init__(self, points: Sequence[Json]) -> None:
        self.by_size: dict[tuple[str, int, int], list[Json]] = {}
        for point in points:
            size = point["start"], point["layers"], point["users"]
            self.by_size.setdefault(size, []).append(point)
        self.starts = [start for start in STARTS if any(start == size[0] for size in self.by_size)]
        self.layers = sorted({layers for _, layers, _ in self.by_size})
        self.users = sorted({users for *_, users in self.by_size})
        self._errors = errors_allowed(CONFIDENCE, len(points))

    @classmethod
    def of(cls, measured: Sequence[Json]) -> "Points":
        """From what the measurements gave."""
        return cls([point for one in measured for point in one["points"]])

    def over_G2(self, start: str, layers: int, users: int) -> list[float]:
        """Every network's variance over its G^2."""
        return [point["variance"] / point["G2"] for point in self.by_size[start, layers, users]]

    def logs(self, start: str, layers: int, users: int) -> list[float]:
        """Logarithms of the same."""
        return [log(value) for value in self.over_G2(start, layers, users)]

    def records(self) -> list[Json]:
        """One for each network, with the interval of its variance."""
        return [
            {
                "weights": STARTS[start],
                "layers": layers,
                "users": users,
                "network": 1 + point["network"],
                "variance": point["variance"] / point["G2"],
                "low": (point["variance"] - self._errors * point["error"]) / point["G2"],
                "high": (point["variance"] + self._errors * point["error"]) / point["G2"],
                "bound": _bound(layers, users),
                "bound_over_variance": _bound(layers, users) * point["G2"] / point["variance"],
                "layerwise_bound": point["layerwise"] / point["G2"],
            }
            for (start, layers, users), points in self.by_size.items()
            for point in points
        ]


def _bound(layers: int, users: int) -> float:
    """[bounded_var] over eta^2 G^2."""
    return variance_bound(Federation(users, layers), eta=1.0, G2=1.0)


def findings(points: Points) -> list[Finding]:
    """Whether the bound holds, and whether the variance does what the bound does."""
    pairs = list(product(points.starts, points.layers))
    few, many = points.layers[0], points.layers[-1]
    times = [record["bound_over_variance"] for record in points.records()]
    return [
        judge(
            "“the variance of w̃_{t+1} is bounded by” [bounded_var].",
            [_is_bounded(points, *pair) for pair in pairs],
            f"The bound is {min(times):,.0f} to {max(times):,.0f} times the variance. What counts "
            f"is the upper end of intervals of {names.percent(CONFIDENCE)} confidence together.",
        ),
        judge(
            "C, and with it the bound on the variance, is “growing at least linearly in […] the "
            "number of layers L” [C_constant].",
            [_bound_is_linear(points.layers, users) for users in points.users],
            "This is arithmetic: the formula has a factor L, and p_1 rises with L.",
        ),
        judge(
            "“the growth in the variance of the stochastic estimate […] for deeper networks”: the "
            f"variance itself, over G², is larger for {many} layers than for {few} (by more than "
            "the interval over the networks).",
            [
                _variance_grows(points, start, users)
                for start, users in product(points.starts, points.users)
            ],
            "The bound's factor L is the proof's: it bounds the squared norm of every layer's "
            "gradient by G², but those of all layers sum to G² at most. What does grow with L is "
            "the variance of the layers near the input, which fewer users reach: it makes the "
            "whole grow where the gradient is large there, and not where it is small.",
        ),
        judge(
            "The variance falls with the number of users, as the bound does.",
            [check for pair in pairs for check in _falls_with_users(points, *pair)],
            f"From {points.users[0]} to {points.users[-1]} users it falls like {_powers(points)}. "
            "The bound falls too, but not below 4 L η² G²: it takes a mean over K users for as "
            "noisy as one user's gradient.",
            ours=True,
        ),
    ]


def _is_bounded(points: Points, start: str, layers: int) -> Check:
    records = [
        record
        for record in points.records()
        if (record["weights"], record["layers"]) == (STARTS[start], layers)
    ]
    nearest = max(records, key=lambda record: record["high"] / record["bound"])
    above = any(record["low"] > record["bound"] for record in records)
    return Check(
        f"{STARTS[start]}, L = {layers}: at U = {nearest['users']} the upper end is "
        f"{nearest['high']:.3g}, the bound {nearest['bound']:.3g}",
        True if nearest["high"] <= nearest["bound"] else False if above else None,
    )


def _bound_is_linear(layers: Sequence[int], users: int) -> Check:
    bounds = [_bound(count, users) for count in layers]
    growth = [b / a for a, b in pairwise(bounds)]
    return Check(
        f"U = {users}: {', '.join(f'{bound:.3g}' for bound in bounds)}",
        all(g >= b / a for g, (a, b) in zip(growth, pairwise(layers), strict=True)),
    )


def _variance_grows(points: Points, start: str, users: int) -> Check:
    few, many = points.layers[0], points.layers[-1]
    growth = paired(points.logs(start, many, users), points.logs(start, few, users))
    told = f"{exp(fmean(growth)):.2g}-fold with {STARTS[start]} and {users} users"
    return between(told, growth, least=ABOVE_ZERO)


def _falls_with_users(points: Points, start: str, layers: int) -> list[Check]:
    checks = []
    for fewer, more in pairwise(points.users):
        before, after = (points.logs(start, layers, users) for users in (fewer, more))
        told = (
            f"{STARTS[start]}, L = {layers}: {exp(fmean(paired(after, before))):.2g}-fold from "
            f"{fewer} to {more} users"
        )
        checks.append(between(told, paired(before, after), least=ABOVE_ZERO))
    return checks


def _powers(points: Points) -> str:
    """The exponents of U in the variance, from the smallest to the largest."""
    few, many = points.users[0], points.users[-1]
    exponents = [
        fmean(paired(points.logs(*pair, many), points.logs(*pair, few))) / log(many / few)
        for pair in product(points.starts, points.layers)
    ]
    return f"U^{min(exponents):.2f} to U^{max(exponents):.2f}"


def _blocks(points: Points) -> list[Block]:
    users = min(points.users, key=lambda count: abs(count - 30))  # as in the experiments
    rows = []
    for start, layers in product(points.starts, points.layers):
        found = points.by_size[start, layers, users]
        variance, bound = fmean(points.over_G2(start, layers, users)), _bound(layers, users)
        layerwise = fmean(point["layerwise"] / point["G2"] for point in found)
        cells = [
            f"{STARTS[start]}, L = {layers}",
            names.percent(round(fmean(point["first"] for point in found), 3)),
            f"{variance:.3g}",
            f"{bound:.3g}",
            f"{bound / variance:,.0f}",
            f"{layerwise / variance:,.0f}",
        ]
        rows.append([Cell(text) for text in cells])
    columns = [
        f"U = {users}",
        "Of |g|² in layer 1",
        "Variance/(η²G²)",
        "Bound",
        "Bound/variance",
        "With G_l² per layer",
    ]
    return [
        Table(columns, rows, "The bound and the variance, mean over the networks"),
        "The last column is the same proof with each layer's gradient bounded by its own G_l² in "
        "place of G²: how many times the variance that bound is. It has no factor L.",
    ]


def _figure(points: Points, preset: Preset) -> Spec:
    alt = optional("altair")
    base = alt.Chart().encode(
        x=alt.X("users:Q", title="Users, U")
        .scale(type="log", domain=[points.users[0], points.users[-1]], nice=False, padding=14)
        .axis(values=points.users, grid=False),
        color=alt.Color("layers:O", title="Layers")
        .scale(
            domain=points.layers,
            range=["#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"],
        )
        .legend(orient="right", symbolType="circle", symbolSize=90, symbolOpacity=1),
        tooltip=[
            alt.Tooltip("layers:O", title="L"),
            alt.Tooltip("users:Q", title="U"),
            *(alt.Tooltip(f"{key}:Q", format=".3g") for key in ("mean", "low", "high", "bound")),
        ],
    )
    y = {
        "title": "Variance / (η² G²)",
        "scale": alt.Scale(type="log"),
        "axis": alt.Axis(format="~g", tickCount=8),
    }
    bound = base.mark_line(strokeDash=[6, 4], strokeWidth=1.6).encode(y=alt.Y("bound:Q", **y))
    line = base.mark_line(strokeWidth=1, opacity=0.5).encode(y=alt.Y("mean:Q", **y))
    spans = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    dots = base.mark_point(filled=True, size=50, opacity=1).encode(y=alt.Y("mean:Q", **y))
    columns = alt.Column("weights:N", title=None, sort=[STARTS[key] for key in points.starts])
    title = alt.Title(
        "The variance of SALF's step: measured (points) and Lemma 3's bound (dashed)",
        subtitle=f"preset {preset.name}: gradients of MLPs of {points.layers[0]} to "
        f"{points.layers[-1]} layers, {preset.draws:,} draws of uniform depths (AS4); "
        f"mean over {NETWORKS} networks, bars from the lowest to the highest",
        anchor="start",
        offset=12,
    )
    records = [
        {
            "weights": STARTS[start],
            "layers": layers,
            "users": users,
            "mean": fmean(values),
            "low": min(values),
            "high": max(values),
            "bound": _bound(layers, users),
        }
        for start, layers, users in points.by_size
        for values in [points.over_G2(start, layers, users)]
    ]
    chart = alt.layer(bound, line, spans, dots, data=alt.InlineData(records))
    return spec(chart.properties(width=340, height=330).facet(columns).properties(title=title))
