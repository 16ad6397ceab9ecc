"""Lemma 1: how many users reach a layer."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import ClassVar

import numpy as np
from scipy import stats

from salf.arrivals import Floats
from salf.depth import Uniform
from salf.experiments.pool import Progress
from salf.report import names
from salf.report.extra import optional
from salf.report.style import Spec, spec
from salf.report.tables import Cell, Table
from salf.reproduction.item import Found, Item, Json, Measurement, Outcome, Remember
from salf.reproduction.lemmas import rounds_of
from salf.reproduction.presets import Preset
from salf.reproduction.verdicts import Check, Finding, judge

# (U, L): the experiments' MLP and CNN, then few layers to many users and the other way round.
SIZES = ((30, 3), (30, 4), (2, 8), (5, 8), (10, 8), (30, 8))
SHOWN = ((30, 4), (5, 8))
# That all tests of a claim pass if it is true. One in a hundred such pages would fail a law that
# holds: so a test that fails is made once more, with fresh draws, and counts if it fails again.
CONFIDENCE = 0.99
SEED, ANOTHER_SEED = 1, 2
# Cells that are expected less often are merged: the usual condition of the chi-square test.
EXPECTED = 5
VISIBLE = 1e-3


class Lemma1(Item):
    """Lemma 1 [binom_rv], with depths as the library draws them."""

    name: ClassVar[str] = "lemma1"
    title: ClassVar[str] = "Lemma 1: how many users reach a layer"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Measurement]:
        """One for every number of users and layers."""
        return [_measurement(*size, preset.draws, SEED) for size in SIZES]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The counts beside the binomial law."""
        measured = [found.measured(task) for task in self.tasks(preset, remember)]
        return Outcome(
            rows=[record for one in measured for record in _records(one)],
            figure=_figure(measured, preset),
            description="How often 0, 1, ... users reached each layer, measured, on top of the "
            "binomial law, for 30 users with 4 layers and 5 users with 8 layers.",
            caption="Points: the share of draws in which that many users reached the layer. "
            "Lines: Bin(U, l/(L+1)).",
            findings=findings(measured, remember),
            intro=f"{preset.draws:,} rounds of depths for each of {len(SIZES)} sizes, drawn by "
            "the library's own Uniform (assumption AS4), with the number of users that reached "
            "each layer counted.",
            blocks=[_table(measured)],
        )


def _measurement(users: int, layers: int, draws: int, seed: int) -> Measurement:
    return Measurement(
        f"lemma1-U{users}-L{layers}",
        measure,
        {"users": users, "layers": layers, "draws": draws, "seed": seed},
        work=draws * 1.2e-5,
    )


def measure(users: int, layers: int, draws: int, seed: int, progress: Progress) -> Json:
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


def findings(measured: Sequence[Json], remember: Remember) -> list[Finding]:
    """What the paper says about |U^l|. Where its law looks doubtful, there are fresh draws."""
    level = (1 - CONFIDENCE) / _tests(measured)
    return [
        judge(
            "“the cardinality of the set [U^l] is distributed as” Bin(U, l/(L+1)) [binom_rv].",
            [_is_binomial(one, level, remember) for one in measured],
            f"{_tests(measured)} chi-square tests, one for each layer of each size, each at p = "
            f"{level:.1e}: all pass with {names.percent(CONFIDENCE)} probability if it is the law. "
            + (_doubted(measured, level, remember) or "All did at once."),
        ),
        judge(
            "A layer is updated by nobody with the probability p_l = (1 − l/(L+1))^U [p_constant].",
            [_matches_formula(one, level, remember) for one in measured],
            f"Exact binomial intervals of {names.percent(CONFIDENCE)} confidence together; where "
            "one does not have it, that of as many fresh draws must.",
        ),
        judge(
            "“the chance that a particular layer would not be updated at all decreases for either "
            "deeper layers or growing number of total users”.",
            [*map(_falls_with_layer, measured), *_falls_with_users(measured)],
            "“Deeper” is towards the output, where backpropagation begins. That it falls with l "
            "is certain in every single round, because the sets are nested.",
        ),
    ]


def _tests(measured: Sequence[Json]) -> int:
    return sum(one["layers"] for one in measured)


def _is_binomial(one: Json, level: float, remember: Remember) -> Check:
    chances = _chances(one)
    worst = min(chances)
    told = f"{_size(one)}: the smallest p-value is {worst:.2g} (layer {1 + chances.index(worst)})"
    again = _again(one, level, remember)
    return Check(told, all(p >= 1 - CONFIDENCE for p in again.values()))


def _again(one: Json, level: float, remember: Remember) -> dict[int, float]:
    """The p-values in fresh draws of those layers whose own are below the level."""
    doubted = [layer for layer, p in enumerate(_chances(one)) if p < level]
    if not doubted:
        return {}
    fresh = _chances(_fresh(one, remember))
    return {layer: fresh[layer] for layer in doubted}


def _fresh(one: Json, remember: Remember) -> Json:
    """As many other draws, made where they are needed."""
    return remember(_measurement(one["users"], one["layers"], one["draws"], ANOTHER_SEED))


def _doubted(measured: Sequence[Json], level: float, remember: Remember) -> str:
    """Which tests failed at first, and what the second ones say."""
    return " ".join(
        f"That of layer {layer + 1} of {_size(one)} did not, with p = {_chances(one)[layer]:.2g}; "
        f"made once more with as many fresh draws, at p = {1 - CONFIDENCE:.2g}, it has p = {p:.2g}."
        for one in measured
        for layer, p in _again(one, level, remember).items()
    )


def _chances(one: Json) -> list[float]:
    """The p-value of every layer's chi-square test."""
    return [
        chi_square(np.array(counts), law)
        for counts, law in zip(one["counts"], _laws(one), strict=True)
    ]


def chi_square(counts: Floats, law: Floats) -> float:
    """The p-value of counts under a law, with neighbouring cells merged where little is due."""
    expected = law * counts.sum()
    cells = [[0.0, 0.0]]
    for seen, due in zip(counts, expected, strict=True):
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
    """Bin(U, l/(L+1)) of every layer, from scipy: nothing here is the library's own."""
    users, layers = one["users"], one["layers"]
    k = np.arange(users + 1)
    return [stats.binom.pmf(k, users, layer / (layers + 1)) for layer in range(1, layers + 1)]


def _matches_formula(one: Json, level: float, remember: Remember) -> Check:
    users, layers, draws = one["users"], one["layers"], one["draws"]
    told, passed = [], True
    for layer, counts in enumerate(one["counts"]):
        p = (1 - (layer + 1) / (layers + 1)) ** users
        holds = _may_be(p, counts[0], draws, 1 - level)
        if not holds or layer == 0:
            told.append(f"layer {layer + 1} {counts[0] / draws:.2g}, by the formula {p:.2g}")
        if not holds:
            passed &= _may_be(p, _fresh(one, remember)["counts"][layer][0], draws, CONFIDENCE)
    return Check(f"{_size(one)}: {', '.join(told)}", passed)


def _may_be(p: float, seen: int, draws: int, confidence: float) -> bool:
    ends = stats.binomtest(seen, draws).proportion_ci(confidence)
    return bool(ends.low <= p <= ends.high)


def _falls_with_layer(one: Json) -> Check:
    empty = [counts[0] / one["draws"] for counts in one["counts"]]
    return Check(f"{_size(one)}, over the layers: {_listed(empty)}", _falls(empty))


def _falls_with_users(measured: Sequence[Json]) -> list[Check]:
    checks = []
    ordered = sorted(measured, key=lambda one: (one["layers"], one["users"]))
    for layers, group in groupby(ordered, lambda one: one["layers"]):
        of_users = list(group)
        for layer in range(layers if len(of_users) > 1 else 0):
            empty = [one["counts"][layer][0] / one["draws"] for one in of_users]
            users = ", ".join(str(one["users"]) for one in of_users)
            told = f"layer {layer + 1} of {layers}, over U = {users}: {_listed(empty)}"
            checks.append(Check(told, _falls(empty)))
    return checks


def _falls(shares: Sequence[float]) -> bool:
    """From one to the next, until it is too rare to be seen."""
    return all(later < earlier or earlier == later == 0 for earlier, later in pairwise(shares))


def _listed(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.2g}" for share in shares)


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
    rows = []
    for one in measured:
        users, layers = one["users"], one["layers"]
        cells = [
            _size(one),
            f"{min(_chances(one)):.2g}",
            f"{one['counts'][0][0] / one['draws']:.4f}",
            f"{(1 - 1 / (layers + 1)) ** users:.4f}",
        ]
        rows.append([Cell(text) for text in cells])
    columns = ["Size", "Smallest p-value of the layers", "Layer 1 left out", "p_1 by the formula"]
    return Table(columns, rows)


def _figure(measured: Sequence[Json], preset: Preset) -> Spec:
    alt = optional("altair")
    panels = []
    for one in (one for one in measured if (one["users"], one["layers"]) in SHOWN):
        # What is too rare to be told from 0 would only hide the axis.
        records = [r for r in _records(one) if max(r["binomial"], r["measured"]) > VISIBLE]
        base = alt.Chart(alt.InlineData(records)).encode(
            x=alt.X("reached:Q", title="Users that reached the layer")
            .axis(tickMinStep=1)
            .scale(domain=[0, one["users"]], padding=6),
            color=alt.Color("layer:O", title="Layer")
            .scale(scheme="viridis")
            .legend(orient="right", symbolType="circle", symbolSize=90),
        )
        y = alt.Y("binomial:Q", title="Share of rounds")
        line = base.mark_line(strokeWidth=1.5).encode(y=y)
        tooltip = [
            alt.Tooltip("layer:O", title="Layer"),
            alt.Tooltip("reached:Q", title="Users"),
            alt.Tooltip("measured:Q", title="Measured", format=".4f"),
            alt.Tooltip("binomial:Q", title="Binomial", format=".4f"),
        ]
        points = base.mark_point(filled=True, size=36, opacity=1).encode(
            y=alt.Y("measured:Q"), tooltip=tooltip
        )
        panels.append(alt.layer(line, points).properties(width=335, height=260, title=_size(one)))
    title = alt.Title(
        "Users that reach a layer: drawn depths (points) and Lemma 1's law (lines)",
        subtitle=f"preset {preset.name}: {preset.draws:,} rounds of depths, uniform on 1..L+1",
        anchor="start",
        offset=12,
    )
    return spec(alt.hconcat(*panels, title=title).resolve_scale(color="independent"))
