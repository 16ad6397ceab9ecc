"""Lemma 1: how many users reach a layer."""

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from scipy import stats

from reproduction.item import Found, Item, Json, Measurement, Outcome
from reproduction.lemmas import rounds_of
from reproduction.sizes import Size
from reproduction.texts import about, finding, heading, text
from reproduction.verdicts import Check, Finding
from salf.common.figures import Axis, Figure, Line, Lines, Point, ordered
from salf.core.arrivals import Floats
from salf.report import names
from salf.report.tables import Table
from salf.runs.training import OnPart
from salf.worlds.depth import Uniform

# (U, L): the experiments' MLP and CNN, then few users for many layers.
SIZES = ((30, 3), (30, 4), (2, 8), (5, 8), (10, 8), (30, 8))
SHOWN = ((30, 4), (5, 8))
# That all tests of a claim pass if it is true. One in a hundred pages would still fail, so a test
# that fails is repeated on a second set of draws, and counts if it fails there too.
CONFIDENCE = 0.99
SEED, SECOND_SEED = 1, 2
EXPECTED = 5  # cells with fewer expected counts are merged, as usual for a chi-square test
VISIBLE = 1e-3


class Lemma1(Item):
    """Lemma 1 [binom_rv], with depths as the library draws them."""

    name = "lemma1"
    title = text("lemma1", "title")

    def tasks(self, size: Size) -> Sequence[Measurement]:
        """Two sets of draws for every number of users and layers."""
        return [
            Measurement(
                f"lemma1-U{users}-L{layers}",
                measure,
                {"users": users, "layers": layers, "draws": size.draws, "seed": seed},
                work=size.draws * 1.2e-5,
            )
            for seed in (SEED, SECOND_SEED)
            for users, layers in SIZES
        ]

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The counts beside the binomial law."""
        both = [found.measured(task) for task in self.tasks(size)]
        measured, second = both[: len(SIZES)], both[len(SIZES) :]
        return Outcome(
            rows=[record for one in measured for record in _records(one)],
            figure=_figure(measured, size),
            findings=findings(measured, second),
            blocks=[_table(measured)],
            **about("lemma1", size=size, sizes=len(SIZES)),
        )


def measure(users: int, layers: int, draws: int, seed: int, progress: OnPart) -> Json:
    """How often |U^l| = k, for every layer l and k = 0..U."""
    law = Uniform(users, layers)
    rng = np.random.default_rng([seed, users, layers])
    counts = np.zeros((layers, users + 1), np.int64)
    for rounds in rounds_of(law, draws, rng):
        reached = np.stack([arrived.reach(layers).sum(axis=1) for arrived in rounds])
        for layer in range(layers):
            counts[layer] += np.bincount(reached[:, layer], minlength=users + 1)
        progress(counts[0].sum() / draws)
    return {"users": users, "layers": layers, "draws": draws, "counts": counts.tolist()}


def findings(measured: Sequence[Json], second: Sequence[Json]) -> list[Finding]:
    """The paper's claims about |U^l|. Tests that fail are repeated on the second draws."""
    tests = sum(one["layers"] for one in measured)
    level = (1 - CONFIDENCE) / tests
    binomial, repeated = [], []
    for one, other in zip(measured, second, strict=True):
        chances, fresh = _chances(one), _chances(other)
        doubtful = [layer for layer, p in enumerate(chances) if p < level]
        worst = min(chances)
        told = f"the smallest p-value is {worst:.2g} (layer {1 + chances.index(worst)})"
        passed = all(fresh[layer] >= 1 - CONFIDENCE for layer in doubtful)
        binomial.append(Check(f"{_size(one)}: {told}", passed))
        repeated += [
            f"That of layer {layer + 1} of {_size(one)} did not, with p = {chances[layer]:.2g}; "
            f"repeated with as many fresh draws, at p = {1 - CONFIDENCE:.2g}, it has "
            f"p = {fresh[layer]:.2g}."
            for layer in doubtful
        ]
    confidence = names.percent(CONFIDENCE)
    outcome = " ".join(repeated) or "All did at once."
    values = {"tests": tests, "level": level, "confidence": confidence, "repeated": outcome}
    formula = [_matches_formula(*pair, level) for pair in zip(measured, second, strict=True)]
    decreases = [*map(_falls_with_layer, measured), *_falls_with_users(measured)]
    return [
        finding("lemma1", "binomial", binomial, **values),
        finding("lemma1", "formula", formula, confidence=confidence),
        finding("lemma1", "decreases", decreases),
    ]


def _chances(one: Json) -> list[float]:
    """The p-value of every layer's chi-square test."""
    pairs = zip(one["counts"], _laws(one), strict=True)
    return [chi_square(np.array(counts), law) for counts, law in pairs]


def chi_square(counts: Floats, law: Floats) -> float:
    """The p-value of counts under a law; neighbouring cells are merged where few are expected."""
    cells = [[0.0, 0.0]]
    for seen, due in zip(counts, law * counts.sum(), strict=True):
        if cells[-1][1] >= EXPECTED:
            cells.append([0.0, 0.0])
        cells[-1][0] += seen
        cells[-1][1] += due
    if len(cells) > 1 and cells[-1][1] < EXPECTED:
        seen, due = cells.pop()
        cells[-1][0] += seen
        cells[-1][1] += due
    statistic = sum((seen - due) ** 2 / due for seen, due in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else 1.0


def _laws(one: Json) -> list[Floats]:
    """Bin(U, l/(L+1)) of every layer, from scipy rather than from the library."""
    users, layers = one["users"], one["layers"]
    k = np.arange(users + 1)
    return [stats.binom.pmf(k, users, layer / (layers + 1)) for layer in range(1, layers + 1)]


def _matches_formula(one: Json, other: Json, level: float) -> Check:
    users, layers, draws = one["users"], one["layers"], one["draws"]
    told, passed = [], True
    for layer, (counts, fresh) in enumerate(zip(one["counts"], other["counts"], strict=True), 1):
        p = (1 - layer / (layers + 1)) ** users
        holds = _may_be(p, counts[0], draws, 1 - level)
        if not holds or layer == 1:
            told.append(f"layer {layer} {counts[0] / draws:.2g}, by the formula {p:.2g}")
        passed &= holds or _may_be(p, fresh[0], draws, CONFIDENCE)
    return Check(f"{_size(one)}: {', '.join(told)}", passed)


def _may_be(p: float, seen: int, draws: int, confidence: float) -> bool:
    ends = stats.binomtest(seen, draws).proportion_ci(confidence)
    return bool(ends.low <= p <= ends.high)


def _falls_with_layer(one: Json) -> Check:
    empty = [counts[0] / one["draws"] for counts in one["counts"]]
    return _falls(f"{_size(one)}, over the layers", empty)


def _falls_with_users(measured: Sequence[Json]) -> list[Check]:
    checks = []
    ordered = sorted(measured, key=lambda one: (one["layers"], one["users"]))
    for layers, group in groupby(ordered, lambda one: one["layers"]):
        of_users = list(group)
        users = ", ".join(str(one["users"]) for one in of_users)
        for layer in range(layers if len(of_users) > 1 else 0):
            empty = [one["counts"][layer][0] / one["draws"] for one in of_users]
            checks.append(_falls(f"layer {layer + 1} of {layers}, over U = {users}", empty))
    return checks


def _falls(where: str, shares: Sequence[float]) -> Check:
    """From each share to the next, until the event is too rare to be seen."""
    told = ", ".join(f"{share:.2g}" for share in shares)
    falls = all(later < earlier or earlier == later == 0 for earlier, later in pairwise(shares))
    return Check(f"{where}: {told}", falls)


def _size(one: Json) -> str:
    return f"U = {one['users']}, L = {one['layers']}"


def _records(one: Json) -> list[Json]:
    return [
        {
            "users": one["users"],
            "layers": one["layers"],
            "layer": layer,
            "reached": k,
            "measured": count / one["draws"],
            "binomial": float(law[k]),
        }
        for layer, (counts, law) in enumerate(zip(one["counts"], _laws(one), strict=True), 1)
        for k, count in enumerate(counts)
    ]


def _table(measured: Sequence[Json]) -> Table:
    return Table(
        ["Size", "Smallest p-value of the layers", "Layer 1 left out", "p_1 by the formula"],
        [
            [
                _size(one),
                f"{min(_chances(one)):.2g}",
                f"{one['counts'][0][0] / one['draws']:.4f}",
                f"{(1 - 1 / (one['layers'] + 1)) ** one['users']:.4f}",
            ]
            for one in measured
        ],
    )


def _figure(measured: Sequence[Json], size: Size) -> Figure:
    shown = [one for one in measured if (one["users"], one["layers"]) in SHOWN]
    layers = [f"layer {layer}" for layer in range(1, 1 + max(one["layers"] for one in shown))]
    points = [
        Point(
            f"layer {record['layer']}",
            record["reached"],
            record["measured"],
            reference=record["binomial"],
            panel=_size(one),
        )
        for one in shown
        for record in _records(one)
        # What is too rare to be told from 0 would hide the axis.
        if max(record["binomial"], record["measured"]) > VISIBLE
    ]
    chart = Lines(
        points,
        [Line(*pair) for pair in zip(layers, ordered(len(layers)), strict=True)],
        x=Axis("Users that reached the layer", free=True),
        y=Axis("Share of rounds", free=True),
        interval="bar",
        joined=False,
        reference="dashed",
        height=260,
    )
    return Figure([chart], **heading("lemma1", size=size))
