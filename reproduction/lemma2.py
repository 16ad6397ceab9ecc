"""Lemma 2: SALF's step is FedAvg's on average over the depths."""

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from scipy import stats

from reproduction import lemmas
from reproduction.item import Found, Item, Json, Measurement, Outcome
from reproduction.lemmas import on_images, rounds_of, weights_of
from reproduction.sizes import Size
from reproduction.texts import about, finding, heading, text
from reproduction.verdicts import Check, Finding
from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.core.arrivals import Floats
from salf.methods import Method
from salf.methods.drop import Drop
from salf.methods.salf import SALF
from salf.models import build
from salf.report import names
from salf.report.tables import Table, bold
from salf.runs.training import OnPart
from salf.worlds import depth

USERS = (2, 4, 30)
RATIO = 0.9  # of stragglers in the experiments' mixture
CONFIDENCE = 0.99  # that all intervals, and all regions, hold the truth
VISIBLE = 0.01  # the smallest p_1 whose neglect the draws can show

# SALF, and three that are not unbiased: a test that lets them pass has no power.
VARIANTS: Mapping[str, str] = {
    "salf": "SALF",
    "undivided": "SALF not divided by 1 − p_l",
    "all": "SALF averaged over all users",
    "drop": "Drop",
}


class Lemma2(Item):
    """Lemma 2 [unbiasedness], on the gradients of the paper's MLP."""

    name = "lemma2"
    title = text("lemma2", "title")

    def tasks(self, size: Size) -> Sequence[Measurement]:
        """AS4's depths for some numbers of users, and the experiments' mixture."""
        config = size.configs["mlp"]
        laws = [*((users, "uniform") for users in USERS), (config.users, "mixture")]
        return [
            on_images(
                f"lemma2-{law}-U{users}",
                measure,
                config,
                work=0.5 + size.draws * 4e-5,
                users=users,
                law=law,
                draws=size.draws,
                seed=2,
            )
            for users, law in laws
        ]

    def outcome(self, size: Size, found: Found) -> Outcome:
        """SALF's mean step beside FedAvg's, and those of the controls."""
        measured = [found.measured(task) for task in self.tasks(size)]
        records = [
            {"case": case, "variant": VARIANTS[variant], "layer": number, **layer}
            for (case, variant), layers in _compared(measured).items()
            for number, layer in enumerate(layers, 1)
        ]
        return Outcome(
            rows=[{k: v for k, v in record.items() if k != "agrees"} for record in records],
            figure=_figure(records, size),
            findings=findings(measured),
            blocks=[_table(measured)],
            **about("lemma2", size=size, confidence=names.percent(CONFIDENCE)),
        )


def measure(
    data: str,
    data_dir: str,
    batch_size: int,
    users: int,
    law: str,
    draws: int,
    seed: int,
    progress: OnPart,
) -> Json:
    """The mean over the draws of every variant's weights, against FedAvg's 1/U."""
    rng = np.random.default_rng([seed, users])
    found = lemmas.images(data, data_dir)
    model = build("mlp", found.train.shape, found.classes, seed)
    products = lemmas.inner_products(model, found.train, users, batch_size, rng)
    layers = len(products)
    depths = depth.parse(law, users, layers, RATIO)
    unreached = depths.unreached(depths.everybody)
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
    found = _compared(measured)
    uniform = [one for one in measured if one["law"] == "uniform"]
    unseen = [str(one["users"]) for one in uniform if one["unreached"][0] < VISIBLE]

    def unbiased(law: str) -> list[Check]:
        cases = [_case(one) for one in measured if one["law"] == law]
        return [
            Check(
                f"{case}: {_ratios(found[case, 'salf'])} of FedAvg's step by layer, p = "
                f"{min(layer['region_p_value'] for layer in found[case, 'salf']):.2g} for the "
                "worst layer's weights",
                _agrees(found[case, "salf"]),
            )
            for case in cases
        ]

    biased = [
        Check(
            f"{_case(one)}: {VARIANTS[variant]} is {_ratios(layers)} of FedAvg's step by layer",
            not _agrees(layers),
        )
        for one in uniform
        for variant in one["variants"]
        if variant == "all" or (variant != "salf" and one["unreached"][0] >= VISIBLE)
        for layers in [found[_case(one), variant]]
    ]
    confidence, hidden = names.percent(CONFIDENCE), names.listed(unseen) or "many"
    return [
        finding("lemma2", "unbiased", unbiased("uniform"), confidence=confidence),
        finding("lemma2", "biased", biased, hidden=hidden),
        finding("lemma2", "mixture", unbiased("mixture")),
    ]


def _compared(measured: Sequence[Json]) -> dict[tuple[str, str], list[Json]]:
    """All layers by case and variant; intervals and tests hold for all at once (Bonferroni)."""
    tests = sum(len(one["variants"]["salf"]) for one in measured)
    errors, level = lemmas.errors_allowed(CONFIDENCE, tests), (1 - CONFIDENCE) / tests
    found: dict[tuple[str, str], list[Json]] = {}
    for one in measured:
        for variant, layers in one["variants"].items():
            found[_case(one), variant] = [
                {
                    "ratio": layer["ratio"],
                    "low": layer["ratio"] - errors * layer["error"],
                    "high": layer["ratio"] + errors * layer["error"],
                    "region_p_value": (p := _region(layer, one["draws"], level)),
                    "agrees": abs(layer["ratio"] - 1) <= errors * layer["error"] and p >= level,
                }
                for layer in layers
            ]
    return found


def _region(layer: Json, draws: int, level: float) -> float:
    """The p-value of Hotelling's test that the mean of all weights is 1/U."""
    # What did not happen in n draws may have a probability of up to log(1/level)/n.
    if layer["unvaried"] > log(1 / level) / draws:
        return 0.0
    rank = layer["rank"]
    if not rank:  # nothing varied in any draw: `unvaried` says whether it is off
        return 1.0
    f = layer["t2"] * (draws - rank) / (rank * (draws - 1))
    return float(stats.f.sf(f, rank, draws - rank))


def _agrees(layers: Sequence[Json]) -> bool:
    return all(layer["agrees"] for layer in layers)


def _ratios(layers: Sequence[Json], between: str = ", ") -> str:
    return between.join(f"{one['ratio']:.3f} ±{one['high'] - one['ratio']:.3f}" for one in layers)


def _case(one: Json) -> str:
    ratio = "" if one["law"] == "uniform" else f", {names.percent(RATIO)} stragglers"
    return f"U = {one['users']}{ratio}"


def _table(measured: Sequence[Json]) -> Table:
    rows = [
        [
            bold(f"{case}: {VARIANTS[variant]}", variant == "salf"),
            *_ratios(layers, "|").split("|"),
            "yes" if _agrees(layers) else "no",
        ]
        for (case, variant), layers in _compared(measured).items()
    ]
    columns = [f"Layer {layer + 1}" for layer in range(len(measured[0]["unreached"]))]
    caption = "The mean step along FedAvg's, as a multiple of FedAvg's"
    return Table(["", *columns, "Could be unbiased"], rows, caption)


def _figure(records: Sequence[Json], size: Size) -> Figure:
    return Figure(
        [
            _chart(records, 0, 1.1, "Mean step / FedAvg's step", height=200),
            _chart(records, 0.95, 1.05, "The same, near 1", height=150),
        ],
        **heading(
            "lemma2", size=size, ratio=names.percent(RATIO), confidence=names.percent(CONFIDENCE)
        ),
    )


def _chart(records: Sequence[Json], least: float, most: float, title: str, height: int) -> Lines:
    """The ratios from `least` to `most`: variants side by side, over the layers."""
    variants = list(VARIANTS.values())
    last = max(record["layer"] for record in records)
    points = [
        Point(
            record["variant"],
            record["layer"] + 0.15 * (variants.index(record["variant"]) - 1.5),
            record["ratio"],
            max(record["low"], least),
            min(record["high"], most),
            panel=record["case"],
        )
        for record in records
        if least <= record["ratio"] <= most
    ]
    cases = dict.fromkeys(record["case"] for record in records)
    points += [Point("FedAvg", x, 1.0, panel=c) for c in cases for x in (0.5, last + 0.5)]
    colours = ("#D55E00", "#E69F00", "#56B4E9", "#0072B2")
    lines = [Line(*pair) for pair in zip(variants, colours, strict=True)]
    return Lines(
        points,
        [*lines, Line("FedAvg", "#000000", dashed=True)],
        x=Axis("Layer", ticks=range(1, last + 1), domain=(0.5, last + 0.5)),
        y=Axis(title, domain=(least, most)),
        interval="bar",
        joined=False,
        height=height,
    )
