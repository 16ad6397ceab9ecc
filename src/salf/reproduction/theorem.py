"""The theorem: how fast SALF converges on a strongly convex problem, against the bound."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from salf.arrivals import Floats, Ints
from salf.experiments.pool import Progress
from salf.methods import method
from salf.report import names
from salf.report.extra import optional
from salf.report.style import Spec, spec
from salf.report.tables import Cell, Table
from salf.reproduction.comparisons import ABOVE_ZERO, between
from salf.reproduction.item import Found, Item, Json, Measurement, Outcome, Remember
from salf.reproduction.lemmas import images, source
from salf.reproduction.presets import Preset
from salf.reproduction.ridge import from_images, trajectories
from salf.reproduction.statistics import CONFIDENCE, interval, paired
from salf.reproduction.verdicts import Check, Finding, judge
from salf.schedules import theorem_gamma
from salf.theory import Constants, Federation, convergence_bound

METHODS = ("salf", "fedavg")
USERS, LAYERS = 10, 4
SAMPLES = 10_000
# Heterogeneous users, so that Gamma > 0; a ridge and few features, so that kappa is small and
# most rounds are in the asymptotic regime t >> gamma = 8 kappa.
PROBLEM: Mapping[str, Any] = {
    "users": USERS,
    "features": 16,
    "spec": "dirichlet:1",
    "ridge": 0.5,
}
LATE = 1 / 20  # the slope is fitted from this share of the rounds on
# How much flatter than -1 SALF's slope may be (O(1/t) does not forbid it to be steeper), and how
# far from each other, either way, the two slopes may be.
SLOPE_MARGIN = 0.1
_POINTS = 120  # of a curve, or of a fit


class Theorem(Item):
    """The convergence bound [FL_Convergence] on ridge regression, its parameters in L blocks."""

    name: ClassVar[str] = "theorem"
    title: ClassVar[str] = "Theorem: convergence at O(1/t)"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Measurement]:
        """SALF, and FedAvg on the same mini-batches."""
        config = preset.configs["mlp"]
        return [
            Measurement(
                f"theorem-{name}",
                measure,
                {
                    **source(config),
                    "method_name": name,
                    "layers": LAYERS,
                    "samples": SAMPLES,
                    "batch_size": config.batch_size,
                    "problem": dict(PROBLEM),
                    "rounds": preset.theorem_rounds,
                    "repeats": preset.theorem_repeats,
                    "seed": 4,
                },
                work=preset.theorem_rounds * (3e-4 + 1e-4 * preset.theorem_repeats),
            )
            for name in METHODS
        ]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The measured gaps beside the bounds."""
        tasks = zip(METHODS, self.tasks(preset, remember), strict=True)
        measured = {name: found.measured(task) for name, task in tasks}
        records = _records(measured)
        return Outcome(
            rows=records,
            figure=_figure(records, preset),
            description="The gap to the optimum over the rounds, both axes logarithmic, for SALF "
            "and FedAvg, with the theorem's bounds far above. All fall like 1/t in the end.",
            caption="Lines: mean of F(w_t) − F(w_opt) over the repeats, with its "
            f"{names.percent(CONFIDENCE)} interval. Dashed: [FL_Convergence], for FedAvg with "
            "C = 0.",
            findings=findings(measured),
            intro="Ridge regression (even or odd label) on whitened principal components of "
            f"{preset.configs['mlp'].data} images: {USERS} users with Dirichlet(1) labels, "
            f"{PROBLEM['features']} parameters in {LAYERS} blocks for layers, mini-batches of "
            f"{preset.configs['mlp'].batch_size}, w_1 = 0, the theorem's step size, depths of "
            "AS4; "
            f"{preset.theorem_repeats} repeats of {preset.theorem_rounds:,} rounds.",
            blocks=[
                _table(measured),
                "ρ_c, ρ_s, Γ and w_opt are exact. σ_u² and G² cannot hold on all of R^m, as AS2 "
                "and AS3 want it: a strongly convex F_u has gradients that grow without limit, "
                "so AS1 and AS3 contradict each other. Here they are the largest exact "
                "expectations (over all mini-batches) at any model that any repeat visited, "
                "which is where the proof uses them.",
            ],
        )


def measure(
    data: str,
    data_dir: str,
    method_name: str,
    layers: int,
    samples: int,
    batch_size: int,
    problem: Mapping[str, Any],
    rounds: int,
    repeats: int,
    seed: int,
    progress: Progress,
) -> Json:
    """The gap after every round: its mean over the repeats and the upper end of its interval."""
    rng = np.random.default_rng(seed)
    train = images(data, data_dir).train
    chosen = rng.permutation(len(train))[:samples]
    ridge = from_images(train.subset(np.sort(chosen)), batch_size=batch_size, rng=rng, **problem)
    rule = method(method_name)
    gaps = np.empty((rounds, repeats))
    sigma2, G2 = np.zeros(len(ridge.shares)), 0.0
    for t, models in enumerate(trajectories(ridge, rule, layers, range(repeats), rounds), 1):
        gaps[t - 1] = ridge.gap(models)
        variances, squares = ridge.gradient_moments(models)
        sigma2, G2 = np.maximum(sigma2, variances.max(1)), max(G2, float(squares.max()))
        progress(t / rounds)
    gamma = theorem_gamma(*ridge.rho)
    return {
        "users": len(ridge.shares),
        "layers": layers,
        "rho": list(ridge.rho),
        "Gamma": ridge.heterogeneity,
        "distance2": float(ridge.optimum @ ridge.optimum),  # w_1 = 0
        "sigma2": sigma2.tolist(),
        "G2": G2,
        "mean": gaps.mean(1).tolist(),
        "high": upper_end(gaps).tolist(),
        "slopes": slopes(gaps, gamma).tolist(),
        "scales": late_scale(gaps, gamma).tolist(),
    }


def upper_end(gaps: Floats) -> Floats:
    """Of the interval of the mean over the repeats, in every round."""
    repeats = gaps.shape[1]
    t = stats.t.ppf((1 + CONFIDENCE) / 2, repeats - 1)
    return np.asarray(gaps.mean(1) + t * gaps.std(1, ddof=1) / np.sqrt(repeats))


def slopes(gaps: Floats, gamma: float) -> Floats:
    """Of log gap over log(gamma + t) in the later rounds, repeat by repeat."""
    t = _spaced(LATE * len(gaps), len(gaps))
    return np.asarray(np.polyfit(np.log(gamma + t), np.log(gaps[t - 1]), 1)[0])


def late_scale(gaps: Floats, gamma: float) -> Floats:
    """A in gap = A / (gamma + t): the mean of gap (gamma + t) in the later rounds."""
    t = _spaced(LATE * len(gaps), len(gaps))
    return np.asarray((gaps[t - 1] * (gamma + t[:, None])).mean(0))


def _spaced(first: float, last: int) -> Ints:
    """Some rounds, evenly on a logarithmic scale."""
    return np.unique(np.geomspace(max(1, first), last, _POINTS).round().astype(np.int64))


class Bound:
    """[FL_Convergence] with the constants that all repeats of both methods keep to."""

    def __init__(self, measured: Mapping[str, Json]) -> None:
        any_one = measured["salf"]
        rho_c, rho_s = any_one["rho"]
        self.federation = Federation(any_one["users"], any_one["layers"])
        self.constants = Constants(
            rho_c,
            rho_s,
            sigma2=np.max([one["sigma2"] for one in measured.values()], axis=0).tolist(),
            G2=max(one["G2"] for one in measured.values()),
            Gamma=any_one["Gamma"],
        )
        self.distance2: float = any_one["distance2"]

    def at(self, t: int, name: str) -> float:
        """The bound on the gap; FedAvg has no deadline."""
        return convergence_bound(
            self.federation, self.constants, t, self.distance2, deadline=name == "salf"
        )


def findings(measured: Mapping[str, Json]) -> list[Finding]:
    """Under the bound, at its rate, and what the deadline costs."""
    bound = Bound(measured)
    salf, fedavg = (interval(measured[name]["scales"]) for name in METHODS)
    last = len(measured["salf"]["mean"])
    said = bound.at(last, "salf") / bound.at(last, "fedavg")
    return [
        judge(
            "E[F(w̃_t)] − F(w_opt) is under the bound [FL_Convergence] for all t.",
            [_is_under(measured["salf"], bound, "salf")],
            f"The bound is loose: {bound.at(last, 'salf') / measured['salf']['mean'][-1]:.0f} "
            "times the gap at the end. With C = 0 and the same constants, FedAvg's is "
            f"{bound.at(last, 'fedavg') / measured['fedavg']['mean'][-1]:.0f} times its gap.",
        ),
        judge(
            "“SALF converges at a rate of O(1/t). This asymptotic rate is identical to FL schemes "
            "with no latency limitations”.",
            _rates(measured),
            f"Slopes of log gap over log(γ + t) from t = {LATE * last:.0f} on, mean and "
            f"{names.percent(CONFIDENCE)} interval over repeats. SALF's own may be up to "
            f"{SLOPE_MARGIN} above −1, and the two up to {SLOPE_MARGIN} apart, either way.",
        ),
        judge(
            "“in the non-asymptotic regime, the integration of a latency deadline influences model "
            "convergence”, by C: a constant factor, not the rate.",
            [*_costs(measured, said), _same_rate(measured)],
            f"Late gaps are about {salf.mean:.3g}/(γ + t) for SALF and {fedavg.mean:.3g}/(γ + t) "
            f"for FedAvg: SALF needs {salf.mean / fedavg.mean:.1f} times FedAvg's rounds for the "
            f"same gap, with one user in {bound.federation.layers + 1} finishing (AS4). C suggests "
            f"{said:.0f} times.",
        ),
    ]


def _is_under(one: Json, bound: Bound, name: str) -> Check:
    bounds = [bound.at(t, name) for t in range(1, len(one["mean"]) + 1)]
    shares = [high / most for high, most in zip(one["high"], bounds, strict=True)]
    # The lower end is as far from the mean as the upper one.
    lows = [2 * mean - high for mean, high in zip(one["mean"], one["high"], strict=True)]
    above = any(low > most for low, most in zip(lows, bounds, strict=True))
    t = 1 + int(np.argmax(shares))
    return Check(
        f"nearest at t = {t}: the gap is {one['mean'][t - 1]:.3g}, the upper end of its "
        f"{names.percent(CONFIDENCE)} interval {one['high'][t - 1]:.3g}, the bound "
        f"{bounds[t - 1]:.3g}",
        True if max(shares) <= 1 else False if above else None,
    )


def _rates(measured: Mapping[str, Json]) -> list[Check]:
    salf = measured["salf"]["slopes"]
    told = f"SALF's slope is {interval(salf).signed}"
    return [between(told, salf, most=-1 + SLOPE_MARGIN), _same_rate(measured)]


def _same_rate(measured: Mapping[str, Json]) -> Check:
    salf, fedavg = (measured[name]["slopes"] for name in METHODS)
    apart = paired(salf, fedavg)
    return between(
        f"SALF's slope less FedAvg's, which is {interval(fedavg).signed}, is "
        f"{interval(apart).signed}",
        apart,
        -SLOPE_MARGIN,
        SLOPE_MARGIN,
    )


def _costs(measured: Mapping[str, Json], said: float) -> list[Check]:
    """SALF's late gap is larger than FedAvg's, and no more times larger than its bound."""
    salf, fedavg = (measured[name]["scales"] for name in METHODS)
    factor = fmean(salf) / fmean(fedavg)
    allowed = [said * each for each in fedavg]
    return [
        between(
            f"SALF's late gap is {factor:.2f} times FedAvg's",
            paired(salf, fedavg),
            least=ABOVE_ZERO,
        ),
        between(
            f"SALF's bound is {said:.3g} times FedAvg's, which is no less",
            paired(allowed, salf),
            least=0.0,
        ),
    ]


def _table(measured: Mapping[str, Json]) -> Table:
    bound = Bound(measured)
    constants, federation = bound.constants, bound.federation
    kappa = constants.rho_s / constants.rho_c
    values = {
        "ρ_c, smallest eigenvalue of a user's Hessian": constants.rho_c,
        "ρ_s, largest": constants.rho_s,
        "κ = ρ_s/ρ_c": kappa,
        "γ = max(8κ, 1)": theorem_gamma(constants.rho_c, constants.rho_s),
        "Γ [psi_heterogeneity_gap]": constants.Gamma,
        "|w_1 − w_opt|²": bound.distance2,
        "σ_u², mean over the users": float(np.mean(constants.sigma2)),
        "G²": constants.G2,
        "B [C_constant]": constants.B(federation),
        "C [C_constant]": constants.C(federation),
    }
    rows = [[Cell(name), Cell(f"{value:.4g}")] for name, value in values.items()]
    return Table(["Constant", "Value"], rows, "Computed from the data, not guessed")


def _records(measured: Mapping[str, Json]) -> list[Json]:
    bound = Bound(measured)
    rounds = len(measured["salf"]["mean"])
    records = []
    for name, one in measured.items():
        for t in _spaced(1, rounds).tolist():
            mean, high = one["mean"][t - 1], one["high"][t - 1]
            records.append(
                {
                    "method": names.method(name),
                    "t": t,
                    "gap": mean,
                    "low": 2 * mean - high,
                    "high": high,
                    "bound": bound.at(t, name),
                }
            )
    return records


def _figure(records: Sequence[Json], preset: Preset) -> Spec:
    alt = optional("altair")
    base = alt.Chart().encode(
        x=alt.X("t:Q", title="Round, t")
        .scale(type="log", nice=False)
        .axis(values=[10**power for power in range(7)]),
        color=alt.Color("method:N", title=None)
        .scale(domain=[names.method(name) for name in METHODS], range=names.colours(METHODS))
        .legend(orient="top", labelLimit=0, symbolType="stroke", symbolOpacity=1),
        tooltip=[
            alt.Tooltip("method:N", title="Method"),
            alt.Tooltip("t:Q", title="Round"),
            *(alt.Tooltip(f"{key}:Q", format=".3g") for key in ("gap", "low", "high", "bound")),
        ],
    )
    y = {
        "title": "F(w_t) − F(w_opt)",
        "scale": alt.Scale(type="log"),
        "axis": alt.Axis(format="~e", tickCount=8),
    }
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=alt.Y("gap:Q", **y))
    dashed = base.mark_line(strokeDash=[6, 4], strokeWidth=1.6).encode(y=alt.Y("bound:Q", **y))
    title = alt.Title(
        "Gap to the optimum: measured (lines) and the theorem's bounds (dashed)",
        subtitle=f"preset {preset.name}: ridge regression on {preset.configs['mlp'].data}, {USERS} "
        f"users, {LAYERS} layers, {preset.theorem_repeats} repeats; "
        f"mean and {names.percent(CONFIDENCE)} interval",
        anchor="start",
        offset=12,
    )
    chart = alt.layer(band, dashed, line, data=alt.InlineData(list(records)))
    return spec(chart.properties(width=780, height=380, title=title))
