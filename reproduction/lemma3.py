"""Lemma 3: how far SALF's step is from FedAvg's, against the bound."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import exp, log, prod
from statistics import fmean

import numpy as np
import torch
from torch import nn

from reproduction import lemmas
from reproduction.comparisons import ABOVE_ZERO, between
from reproduction.item import Found, Item, Json, Measurement, Outcome
from reproduction.lemmas import on_images, rounds_of, weights_of
from reproduction.sizes import Size
from reproduction.statistics import paired
from reproduction.texts import about, finding, heading, text
from reproduction.verdicts import Check, Finding
from salf.common.figures import Axis, Figure, Line, Lines, Point, ordered
from salf.core.arrivals import Floats
from salf.methods.salf import SALF
from salf.report import names
from salf.report.page import PageBlock
from salf.report.tables import Table
from salf.runs.training import OnPart
from salf.theory import Federation, variance_bound
from salf.worlds.depth import Uniform

USERS = (2, 5, 10, 30, 100)
LAYERS = (1, 2, 4, 8, 16)
WIDTH = 32  # of all hidden layers
# How weights are drawn decides where in a deep network the gradients are large.
STARTS: Mapping[str, str] = {"default": "PyTorch's default weights", "he": "He's weights"}
NETWORKS = 5  # drawn for each: one network's gradients say little about others'
CONFIDENCE = 0.99  # that all intervals of variances hold the truth


class Lemma3(Item):
    """Lemma 3 [bounded_var], on the gradients of MLPs of 1 to 16 layers."""

    name = "lemma3"
    title = text("lemma3", "title")

    def tasks(self, size: Size) -> Sequence[Measurement]:
        """One for every number of layers."""
        return [
            on_images(
                f"lemma3-L{layers}",
                measure,
                size.configs["mlp"],
                work=2 + size.draws * (8e-5 + 1.2e-5 * layers),
                layers=layers,
                users=list(USERS),
                networks=NETWORKS,
                draws=size.draws,
                seed=3,
            )
            for layers in reversed(LAYERS)
        ]

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The variances beside the bound."""
        measured = [found.measured(task) for task in self.tasks(size)]
        points = Points([point for one in measured for point in one["points"]])
        return Outcome(
            rows=points.records(),
            figure=_figure(points, size),
            findings=findings(points),
            blocks=_blocks(points),
            **about(
                "lemma3",
                size=size,
                layers=names.listed([str(layers) for layers in LAYERS]),
                width=WIDTH,
                networks=NETWORKS,
            ),
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
    progress: OnPart,
) -> Json:
    """E |w~ - w|^2 for the first 2, 5, ... users, with its standard error, at eta = 1."""
    train, classes = (found := lemmas.images(data, data_dir)).train, found.classes
    users = [count for count in users if count * batch_size <= len(train)]
    products = {
        (start, number): lemmas.inner_products(
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
            off = weights_of(SALF(), rounds, law.unreached(law.everybody)) - 1 / count
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
                    "layerwise": layerwise_bound(norms.max(1), count, law.unreached(law.everybody)),
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
        self._errors = lemmas.errors_allowed(CONFIDENCE, len(points))

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
    times = [record["bound_over_variance"] for record in points.records()]
    times_of = {"least": min(times), "most": max(times), "confidence": names.percent(CONFIDENCE)}
    bounded = [_is_bounded(points, *pair) for pair in pairs]
    linear = [_bound_is_linear(points.layers, users) for users in points.users]
    grows = [_variance_grows(points, *pair) for pair in product(points.starts, points.users)]
    falls = [check for pair in pairs for check in _falls_with_users(points, *pair)]
    fewest, most = points.users[0], points.users[-1]
    return [
        finding("lemma3", "bounded", bounded, **times_of),
        finding("lemma3", "linear", linear),
        finding("lemma3", "grows", grows, few=points.layers[0], many=points.layers[-1]),
        finding("lemma3", "falls", falls, fewest=fewest, most=most, powers=_powers(points)),
    ]


def _is_bounded(points: Points, start: str, layers: int) -> Check:
    where = STARTS[start], layers
    records = [r for r in points.records() if (r["weights"], r["layers"]) == where]
    nearest = max(records, key=lambda record: record["high"] / record["bound"])
    above = any(record["low"] > record["bound"] for record in records)
    return Check(
        f"{STARTS[start]}, L = {layers}: at U = {nearest['users']} the upper end is "
        f"{nearest['high']:.3g}, the bound {nearest['bound']:.3g}",
        True if nearest["high"] <= nearest["bound"] else False if above else None,
    )


def _bound_is_linear(layers: Sequence[int], users: int) -> Check:
    bounds = [_bound(count, users) for count in layers]
    told = f"U = {users}: {', '.join(f'{bound:.3g}' for bound in bounds)}"
    steps = zip(pairwise(bounds), pairwise(layers), strict=True)
    return Check(told, all(later / earlier >= b / a for (earlier, later), (a, b) in steps))


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


def _blocks(points: Points) -> list[PageBlock]:
    users = min(points.users, key=lambda count: abs(count - 30))  # as in the experiments
    rows = []
    for start, layers in product(points.starts, points.layers):
        found = points.by_size[start, layers, users]
        variance, bound = fmean(points.over_G2(start, layers, users)), _bound(layers, users)
        layerwise = fmean(point["layerwise"] / point["G2"] for point in found)
        share = names.percent(round(fmean(point["first"] for point in found), 3))
        ratios = [f"{most / variance:,.0f}" for most in (bound, layerwise)]
        numbers = [f"{variance:.3g}", f"{bound:.3g}", *ratios]
        rows.append([f"{STARTS[start]}, L = {layers}", share, *numbers])
    columns = ["Of |g|² in layer 1", "Variance/(η²G²)", "Bound", "Bound/variance"]
    columns = [f"U = {users}", *columns, "With G_l² per layer"]
    return [
        Table(columns, rows, "The bound and the variance, mean over the networks"),
        text("lemma3", "layerwise"),
    ]


def _figure(points: Points, size: Size) -> Figure:
    line = {layers: f"{layers} layer{'s' * (layers > 1)}" for layers in points.layers}
    drawn = [
        Point(
            line[layers],
            users,
            fmean(values),
            min(values),
            max(values),
            reference=_bound(layers, users),
            panel=STARTS[start],
        )
        for start, layers, users in points.by_size
        for values in [points.over_G2(start, layers, users)]
    ]
    chart = Lines(
        drawn,
        [Line(*pair) for pair in zip(line.values(), ordered(len(line)), strict=True)],
        x=Axis("Users, U", log=True, ticks=points.users),
        y=Axis("Variance / (η² G²)", log=True),
        interval="bar",
        reference="dashed",
        height=330,
    )
    few, many = points.layers[0], points.layers[-1]
    return Figure([chart], **heading("lemma3", size=size, few=few, many=many, networks=NETWORKS))
