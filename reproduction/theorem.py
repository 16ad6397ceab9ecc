"""The theorem: how fast SALF converges on a strongly convex problem, against the bound."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from reproduction.comparisons import ABOVE_ZERO, between
from reproduction.item import Found, Item, Json, Measurement, Outcome
from reproduction.lemmas import images, on_images
from reproduction.ridge import from_images, trajectories
from reproduction.sizes import Size
from reproduction.statistics import paired, signed
from reproduction.texts import about, finding, heading, text
from reproduction.verdicts import Check, Finding
from salf.common.figures import Axis, Figure, Lines, Point
from salf.common.intervals import CONFIDENCE, interval
from salf.core.arrivals import Floats, Ints
from salf.core.server import theorem_gamma
from salf.methods import method
from salf.report import names
from salf.report.tables import Table
from salf.runs.training import OnPart
from salf.theory import Constants, Federation, convergence_bound

METHODS = ("salf", "fedavg")
USERS, LAYERS = 10, 4
SAMPLES = 10_000
# Heterogeneous users, so that Gamma > 0; a ridge and few features, so that kappa is small and
# most rounds are in the asymptotic regime t >> gamma = 8 kappa.
PROBLEM = {"users": USERS, "features": 16, "spec": "dirichlet:1", "ridge": 0.5}
LATE = 1 / 20  # the slope is fitted from this share of the rounds on
# How much flatter than -1 SALF's slope may be (O(1/t) does not forbid it to be steeper), and how
# far from each other, either way, the two slopes may be.
SLOPE_MARGIN = 0.1
_POINTS = 120  # of a curve, or of a fit


class Theorem(Item):
    """The convergence bound [FL_Convergence] on ridge regression, its parameters in L blocks."""

    name = "theorem"
    title = text("theorem", "title")

    def tasks(self, size: Size) -> Sequence[Measurement]:
        """SALF, and FedAvg on the same mini-batches."""
        return [
            on_images(
                f"theorem-{name}",
                measure,
                size.configs["mlp"],
                work=size.theorem_rounds * (3e-4 + 1e-4 * size.theorem_repeats),
                method_name=name,
                layers=LAYERS,
                samples=SAMPLES,
                problem=dict(PROBLEM),
                rounds=size.theorem_rounds,
                repeats=size.theorem_repeats,
                seed=4,
            )
            for name in METHODS
        ]

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The measured gaps beside the bounds."""
        tasks = zip(METHODS, self.tasks(size), strict=True)
        measured = {name: found.measured(task) for name, task in tasks}
        records = _records(measured)
        return Outcome(
            rows=records,
            figure=_figure(records, size),
            findings=findings(measured),
            blocks=[_table(measured), text("theorem", "constants")],
            **about("theorem", **_told(size)),
        )


def _told(size: Size) -> dict[str, Any]:
    """Values for the texts about the item."""
    config, confidence = size.configs["mlp"], names.percent(CONFIDENCE)
    more = {"users": USERS, "layers": LAYERS, "features": PROBLEM["features"]}
    return {"size": size, "config": config, "confidence": confidence, **more}


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
    progress: OnPart,
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
    """The upper end of the interval of the mean over the repeats, in every round."""
    repeats = gaps.shape[1]
    t = stats.t.ppf((1 + CONFIDENCE) / 2, repeats - 1)
    return np.asarray(gaps.mean(1) + t * gaps.std(1, ddof=1) / np.sqrt(repeats))


def slopes(gaps: Floats, gamma: float) -> Floats:
    """Slopes of log gap over log(gamma + t) in the later rounds, repeat by repeat."""
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
    bound, last = Bound(measured), len(measured["salf"]["mean"])
    salf, fedavg = (interval(measured[name]["scales"]).mean for name in METHODS)
    ends = {name: bound.at(last, name) for name in METHODS}
    times = {f"{name}_times": ends[name] / measured[name]["mean"][-1] for name in METHODS}
    said = ends["salf"] / ends["fedavg"]
    rate = f"SALF's slope is {signed(interval(slopes_of := measured['salf']['slopes']))}"
    return [
        finding("theorem", "bounded", [_is_under(measured["salf"], bound, "salf")], **times),
        finding(
            "theorem",
            "rate",
            [between(rate, slopes_of, most=-1 + SLOPE_MARGIN), _same_rate(measured)],
            late=LATE * last,
            confidence=names.percent(CONFIDENCE),
            margin=SLOPE_MARGIN,
        ),
        finding(
            "theorem",
            "costs",
            [*_costs(measured, said), _same_rate(measured)],
            salf=salf,
            fedavg=fedavg,
            times=salf / fedavg,
            one_in=bound.federation.layers + 1,
            said=said,
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


def _same_rate(measured: Mapping[str, Json]) -> Check:
    salf, fedavg = (measured[name]["slopes"] for name in METHODS)
    apart = signed(interval(off := paired(salf, fedavg)))
    told = f"SALF's slope less FedAvg's, which is {signed(interval(fedavg))}, is {apart}"
    return between(told, off, -SLOPE_MARGIN, SLOPE_MARGIN)


def _costs(measured: Mapping[str, Json], said: float) -> list[Check]:
    """SALF's late gap is larger than FedAvg's, and no more times larger than its bound."""
    salf, fedavg = (measured[name]["scales"] for name in METHODS)
    larger = f"SALF's late gap is {fmean(salf) / fmean(fedavg):.2f} times FedAvg's"
    bounded = f"SALF's bound is {said:.3g} times FedAvg's, which is no less"
    allowed = [said * each for each in fedavg]
    return [
        between(larger, paired(salf, fedavg), least=ABOVE_ZERO),
        between(bounded, paired(allowed, salf), least=0.0),
    ]


def _table(measured: Mapping[str, Json]) -> Table:
    bound = Bound(measured)
    constants, federation = bound.constants, bound.federation
    values = {
        "ρ_c, smallest eigenvalue of a user's Hessian": constants.rho_c,
        "ρ_s, largest": constants.rho_s,
        "κ = ρ_s/ρ_c": constants.rho_s / constants.rho_c,
        "γ = max(8κ, 1)": theorem_gamma(constants.rho_c, constants.rho_s),
        "Γ [psi_heterogeneity_gap]": constants.Gamma,
        "|w_1 − w_opt|²": bound.distance2,
        "σ_u², mean over the users": float(np.mean(constants.sigma2)),
        "G²": constants.G2,
        "B [C_constant]": constants.B(federation),
        "C [C_constant]": constants.C(federation),
    }
    rows = [[name, f"{value:.4g}"] for name, value in values.items()]
    return Table(["Constant", "Value"], rows, "Computed from the data, not guessed")


def _records(measured: Mapping[str, Json]) -> list[Json]:
    bound = Bound(measured)
    return [
        {
            "method": names.method(name),
            "t": t,
            "gap": (mean := one["mean"][t - 1]),
            "low": 2 * mean - one["high"][t - 1],
            "high": one["high"][t - 1],
            "bound": bound.at(t, name),
        }
        for name, one in measured.items()
        for t in _spaced(1, len(one["mean"])).tolist()
    ]


def _figure(records: Sequence[Json], size: Size) -> Figure:
    chart = Lines(
        [Point(*(r[k] for k in ("method", "t", "gap", "low", "high", "bound"))) for r in records],
        # Dashed are the bounds.
        [replace(line, dashed=False) for line in names.lines(METHODS)],
        x=Axis("Round, t", log=True, ticks=[10**power for power in range(7)]),
        y=Axis("F(w_t) − F(w_opt)", log=True),
        reference="dashed",
        height=380,
    )
    return Figure([chart], **heading("theorem", **_told(size)))
