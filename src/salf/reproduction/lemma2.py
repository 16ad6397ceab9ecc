"""Lemma 2: SALF's step is FedAvg's on average over the depths."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from salf import depth
from salf.arrivals import Floats
from salf.experiments.pool import Progress
from salf.methods import Method
from salf.methods.drop import Drop
from salf.methods.salf import SALF
from salf.models import build
from salf.report import names
from salf.report.extra import optional
from salf.report.style import INK, Spec, spec
from salf.report.tables import Cell, Table
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
from salf.reproduction.verdicts import Check, Finding, judge

USERS = (2, 4, 30)
RATIO = 0.9  # of stragglers in the experiments' mixture
CONFIDENCE = 0.99  # that all intervals, and all regions, hold the truth
# The smallest p_1 whose neglect the draws can show.
VISIBLE = 0.01

# SALF, and three that are not unbiased: a test that lets them pass has no power.
VARIANTS: Mapping[str, str] = {
    "salf": "SALF",
    "undivided": "SALF not divided by 1 − p_l",
    "all": "SALF averaged over all users",
    "drop": "Drop",
}


class Lemma2(Item):
    """Lemma 2 [unbiasedness], on the gradients of the paper's MLP."""

    name: ClassVar[str] = "lemma2"
    title: ClassVar[str] = "Lemma 2: SALF's step is unbiased"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Measurement]:
        """AS4's depths for some numbers of users, and the experiments' mixture."""
        config = preset.configs["mlp"]
        laws = [*((users, "uniform") for users in USERS), (config.users, "mixture")]
        return [
            Measurement(
                f"lemma2-{law}-U{users}",
                measure,
                {
                    **source(config),
                    "batch_size": config.batch_size,
                    "users": users,
                    "law": law,
                    "draws": preset.draws,
                    "seed": 2,
                },
                work=0.5 + preset.draws * 4e-5,
            )
            for users, law in laws
        ]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """SALF's mean step beside FedAvg's, and those of the controls."""
        measured = [found.measured(task) for task in self.tasks(preset, remember)]
        return Outcome(
            rows=_records(measured),
            figure=_figure(measured, preset),
            description="The mean step of each layer along FedAvg's, as a multiple of it, for "
            "SALF and three biased variants. SALF's intervals hold 1; the others' mostly do not.",
            caption="⟨E step, FedAvg's step⟩ / |FedAvg's step|² of each layer, with intervals that "
            f"together have a confidence of {names.percent(CONFIDENCE)} for each variant.",
            findings=findings(measured),
            intro="One mini-batch gradient of every user at one model, the paper's MLP, held "
            f"fixed; {preset.draws:,} draws of the depths, and the library's own weights.",
            blocks=[_table(measured)],
        )


def measure(
    data: str,
    data_dir: str,
    batch_size: int,
    users: int,
    law: str,
    draws: int,
    seed: int,
    progress: Progress,
) -> Json:
    """The mean over the draws of every variant's weights, against FedAvg's 1/U."""
    rng = np.random.default_rng([seed, users])
    found = images(data, data_dir)
    model = build("mlp", found.train.shape, found.classes, seed)
    products = inner_products(model, found.train, users, batch_size, rng)
    layers = len(products)
    depths = depth.parse(law, users, layers, RATIO)
    unreached = depths.unreached()
    rules: dict[str, tuple[Method, Floats]] = {
        "salf": (SALF(), unreached),
        "undivided": (SALF(), np.zeros(layers)),
        "all": (SALF(average="all"), unreached),
        "drop": (Drop(), unreached),
    }
    if not unreached.any():
        del rules["undivided"]  # it is SALF
    sums = {name: Moments(layers, users) for name in rules}
    for rounds in rounds_of(depths, draws, rng):
        for name, (rule, p) in rules.items():
            sums[name].add(weights_of(rule, rounds, p) - 1 / users)
        progress(sums["salf"].count / draws)
    return {
        "users": users,
        "law": law,
        "draws": draws,
        "unreached": unreached.tolist(),
        "variants": {name: moments.compare(products) for name, moments in sums.items()},
    }


class Moments:
    """Mean and covariance of c[l, .] - 1/U over draws, layer by layer."""

    def __init__(self, layers: int, users: int) -> None:
        self.count = 0
        self._sum = np.zeros((layers, users))
        self._products = np.zeros((layers, users, users))

    def add(self, off: Floats) -> None:
        """Some draws: [draws, L, U]."""
        self.count += len(off)
        self._sum += off.sum(0)
        by_layer = off.transpose(1, 2, 0)
        self._products += by_layer @ by_layer.transpose(0, 2, 1)

    def compare(self, products: Floats) -> list[Json]:
        """Each layer's mean step with FedAvg's, by the gradients' inner products."""
        mean = self._sum / self.count
        covariance = self._products / self.count - mean[:, :, None] * mean[:, None, :]
        covariance *= self.count / (self.count - 1)
        return [
            {**along_fedavg(m, v / self.count, a), **hotelling(m, v / self.count)}
            for m, v, a in zip(mean, covariance, products, strict=True)
        ]


def along_fedavg(off: Floats, covariance: Floats, products: Floats) -> Json:
    """<E step, FedAvg's step> / |FedAvg's step|^2, and its standard error."""
    along = products.mean(1) / products.mean()  # <g_u, mean g> / |mean g|^2
    return {
        "ratio": float(1 + along @ off),
        "error": float(np.sqrt(along @ covariance @ along)),
    }


def hotelling(off: Floats, covariance: Floats) -> Json:
    """T^2 of the mean of U weights in the directions that varied.

    Where nothing varied in any draw, `unvaried` is how far off the weights are, in units of 1/U.
    """
    variances, directions = np.linalg.eigh(covariance)
    varied = variances > 1e-9 * variances[-1]
    along = directions.T @ off
    rest = directions[:, ~varied] @ along[~varied]
    return {
        "t2": float((along[varied] ** 2 / variances[varied]).sum()),
        "rank": int(varied.sum()),
        "unvaried": float(len(off) * np.abs(rest).max()),
    }


def findings(measured: Sequence[Json]) -> list[Finding]:
    """Whether SALF is unbiased, and whether anything else would have passed too."""
    limits = Limits.of(measured)
    uniform = [one for one in measured if one["law"] == "uniform"]
    controls = [
        (one, variant)
        for one in uniform
        for variant in one["variants"]
        if variant == "all" or (variant != "salf" and one["unreached"][0] >= VISIBLE)
    ]
    hidden = [str(one["users"]) for one in uniform if one["unreached"][0] < VISIBLE]
    return [
        judge(
            "“the global model aggregated via SALF [...] is an unbiased estimator of the one "
            "obtained via vanilla” FedAvg, E[w̃_{t+1}] = w_{t+1} [unbiasedness].",
            [_unbiased(one, limits) for one in uniform],
            f"Two tests with {names.percent(CONFIDENCE)} confidence each over all layers and "
            "numbers of users: the mean step along FedAvg's, and Hotelling's T² on the mean of "
            "all users' weights, which covers every direction of the step.",
        ),
        judge(
            "p_l is “set such that [the update] is an unbiased estimator” [salf_update_rule]: "
            "without it, or averaged over all users, or with Drop, there is a bias.",
            [_biased(one, variant, limits) for one, variant in controls],
            f"With {names.listed(hidden) or 'many'} users p_l is too small to be seen in these "
            "draws. Drop, too, is short of FedAvg by p_1 only, so under AS4 it is not the bias "
            "that sets SALF apart from Drop with many users.",
        ),
        judge(
            "With the experiments' mixture of stragglers, which is not AS4, SALF with p_l = 0 is "
            "unbiased too (its experiments need it).",
            [_unbiased(one, limits) for one in measured if one["law"] == "mixture"],
            "The stragglers are drawn afresh each round, so all users are alike.",
            ours=True,
        ),
    ]


class Limits:
    """What is still agreement, for all layers of all measurements at once (Bonferroni)."""

    def __init__(self, tests: int) -> None:
        self.errors = errors_allowed(CONFIDENCE, tests)
        self.level = (1 - CONFIDENCE) / tests

    @classmethod
    def of(cls, measured: Sequence[Json]) -> "Limits":
        """As many tests as SALF has layers in all measurements."""
        return cls(sum(len(one["variants"]["salf"]) for one in measured))

    def agrees(self, layer: Json, draws: int) -> bool:
        """Whether 1, and the point 1/U of all weights, are in the interval and the region."""
        in_interval = abs(layer["ratio"] - 1) <= self.errors * layer["error"]
        return in_interval and self.region(layer, draws) >= self.level

    def region(self, layer: Json, draws: int) -> float:
        """The p-value of Hotelling's test."""
        # What did not happen in n draws may have a chance of up to log(1/level)/n.
        if layer["unvaried"] > log(1 / self.level) / draws:
            return 0.0
        rank = layer["rank"]
        if not rank:  # nothing varied in any draw: `unvaried` says whether it is off
            return 1.0
        f = layer["t2"] * (draws - rank) / (rank * (draws - 1))
        return float(stats.f.sf(f, rank, draws - rank))


def _unbiased(one: Json, limits: Limits) -> Check:
    layers = one["variants"]["salf"]
    smallest = min(limits.region(layer, one["draws"]) for layer in layers)
    told = f"{_case(one)}: {_ratios(layers, limits)} of FedAvg's step by layer, "
    return Check(
        f"{told}p = {smallest:.2g} for the worst layer's weights",
        all(limits.agrees(layer, one["draws"]) for layer in layers),
    )


def _biased(one: Json, variant: str, limits: Limits) -> Check:
    layers = one["variants"][variant]
    return Check(
        f"{_case(one)}: {VARIANTS[variant]} is {_ratios(layers, limits)} of FedAvg's step by layer",
        not all(limits.agrees(layer, one["draws"]) for layer in layers),
    )


def _ratios(layers: Sequence[Json], limits: Limits) -> str:
    return ", ".join(_ratio(layer, limits) for layer in layers)


def _ratio(layer: Json, limits: Limits) -> str:
    return f"{layer['ratio']:.3f} ±{limits.errors * layer['error']:.3f}"


def _case(one: Json) -> str:
    if one["law"] == "uniform":
        return f"U = {one['users']}"
    return f"U = {one['users']}, {names.percent(RATIO)} stragglers"


def _records(measured: Sequence[Json]) -> list[Json]:
    limits = Limits.of(measured)
    return [
        {
            "case": _case(one),
            "variant": VARIANTS[variant],
            "layer": number,
            "ratio": layer["ratio"],
            "low": layer["ratio"] - limits.errors * layer["error"],
            "high": layer["ratio"] + limits.errors * layer["error"],
            "region_p_value": limits.region(layer, one["draws"]),
        }
        for one in measured
        for variant, layers in one["variants"].items()
        for number, layer in enumerate(layers, 1)
    ]


def _table(measured: Sequence[Json]) -> Table:
    limits = Limits.of(measured)
    layers = range(len(measured[0]["unreached"]))
    rows = [
        [
            Cell(f"{_case(one)}: {VARIANTS[variant]}", bold=variant == "salf"),
            *(Cell(_ratio(layer, limits)) for layer in found),
            Cell("yes" if all(limits.agrees(f, one["draws"]) for f in found) else "no"),
        ]
        for one in measured
        for variant, found in one["variants"].items()
    ]
    columns = ["", *(f"Layer {layer + 1}" for layer in layers), "Could be unbiased"]
    return Table(columns, rows, "The mean step along FedAvg's, as a multiple of FedAvg's")


def _figure(measured: Sequence[Json], preset: Preset) -> Spec:
    alt = optional("altair")
    title = alt.Title(
        "The mean of a step over the depths, next to FedAvg's: 1 is unbiased",
        subtitle=f"preset {preset.name}: gradients of the MLP, {preset.draws:,} draws of depths, "
        f"uniform (AS4) or with {names.percent(RATIO)} stragglers; intervals of "
        f"{names.percent(CONFIDENCE)} together",
        anchor="start",
        offset=12,
    )
    whole = _panels(measured, [0, 1.1], "Mean step / FedAvg's step", height=200)
    near = _panels(measured, [0.95, 1.05], "The same, near 1", height=150)
    return spec(alt.vconcat(whole, near, title=title))


def _panels(measured: Sequence[Json], domain: Sequence[float], name: str, height: int) -> Any:
    alt = optional("altair")
    order = list(VARIANTS.values())
    y = {"title": name, "scale": alt.Scale(domain=list(domain), nice=False)}
    look = alt.Legend(title=None, orient="top", columns=4, labelLimit=0, symbolSize=90)
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="Layer", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=order),
        color=alt.Color("variant:N", legend=look).scale(
            domain=order, range=["#D55E00", "#E69F00", "#56B4E9", "#0072B2"]
        ),
        tooltip=[
            alt.Tooltip("variant:N", title="Variant"),
            alt.Tooltip("layer:O", title="Layer"),
            *(alt.Tooltip(f"{key}:Q", format=".4f") for key in ("ratio", "low", "high")),
        ],
    )
    dots = base.mark_point(filled=True, size=40, opacity=1, clip=True)
    spans = base.mark_rule(strokeWidth=2, clip=True)
    unbiased = alt.Chart().mark_rule(color=INK, strokeDash=[4, 3])
    chart = alt.layer(
        dots.encode(y=alt.Y("ratio:Q", axis=alt.Axis(grid=True, tickCount=5), **y)),
        spans.encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        unbiased.encode(y=alt.YDatum(1.0, **y)),
        data=alt.InlineData(_records(measured)),
    )
    columns = alt.Column("case:N", title=None, sort=[_case(one) for one in measured])
    return chart.properties(width=185, height=height).facet(columns)
