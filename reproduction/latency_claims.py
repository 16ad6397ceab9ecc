"""The paper's claims about accuracy against the deadline, checked on our accuracies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reproduction.comparisons import CONVENTIONS, Scores, as_good, better, between
from reproduction.deadlines import FULL_PASS, straggler_share
from reproduction.paper import TABLE_1, VANILLA
from reproduction.sizes import WITH_DEADLINE
from reproduction.statistics import paired
from reproduction.texts import finding, text
from reproduction.verdicts import Check, Finding, Verdict, judge
from salf.common.intervals import interval
from salf.report import names

# Mappings and ways of averaging: the first is what the paper shows.
PLACES = tuple((m, average) for m in ("uniform", "timed") for average in ("all", "reached"))
PUBLISHED = PLACES[0]

# What the paper says is lost at the tightest deadline, as a share of FedAvg's accuracy.
STATED_LOSS = {"salf": 0.05, "asyncfl": 0.15, "heterofl": 0.70, "drop": 0.90}
SALF_ROUNDING = 0.005  # “merely 5 %” is a rounded number
TOLERANCE = 0.05  # for the others, both ways
MINOR, HARDLY = 0.05, 0.03  # a small loss, and how little more it may be at the tightest deadline
SAME = 0.005  # sums in another order are rounded differently, and training amplifies that
LOW, MODERATE = 1.5, 7.0  # microseconds: the paper's regimes are below 1.5, and up to 7


@dataclass(frozen=True)
class Panel:
    """Test accuracies of one mapping and way of averaging: one number per seed, or None."""

    vanilla: Sequence[float] | None
    accuracies: Mapping[tuple[str, float], Sequence[float] | None]  # by method and deadline

    @property
    def deadlines(self) -> list[float]:
        """From the tightest on."""
        return sorted({deadline for _, deadline in self.accuracies})

    @property
    def tight(self) -> list[float]:
        """The deadlines at which there are stragglers."""
        return [deadline for deadline in self.deadlines if deadline < FULL_PASS]

    def at(self, method: str, deadline: float) -> Scores:
        """One point."""
        name = f"{names.method(method)} at {deadline:g} µs"
        return Scores(name, self.accuracies.get((method, deadline)))

    def over_tight(self, method: str) -> Scores:
        """The mean over the deadlines at which there are stragglers, seed by seed."""
        parts = [self.accuracies.get((method, deadline)) for deadline in self.tight]
        return Scores.mean(f"{names.method(method)} over all deadlines", parts)

    def loss(self, method: str, deadline: float) -> list[float] | None:
        """The loss, as a part of FedAvg's accuracy, seed by seed; None if one diverged."""
        ours = self.accuracies.get((method, deadline))
        if ours is None or self.vanilla is None:
            return None
        return [1 - a / v for a, v in zip(ours, self.vanilla, strict=True)]

    def diverged(self, method: str, deadline: float) -> Check:
        """The check in place of one on a loss that is not known."""
        if self.accuracies.get((method, deadline)) is None:
            return Check(f"{self.at(method, deadline).name}: training diverged", False)
        return Check("FedAvg: training diverged", None)


def _same_without_stragglers(panel: Panel) -> list[Check]:
    checks: list[Check] = []
    for deadline in panel.deadlines:
        for method in WITH_DEADLINE if deadline >= FULL_PASS else ():
            ours = panel.at(method, deadline)
            if ours.seeds is None or panel.vanilla is None:
                checks.append(panel.diverged(method, deadline))
                continue
            apart = max(abs(a - v) for a, v in zip(ours.seeds, panel.vanilla, strict=True))
            told = f"{ours.name} is up to {apart:.4f} away from FedAvg"
            checks.append(Check(told, apart <= SAME))
    return checks


def _minor_degradation(panel: Panel) -> list[Check]:
    checks: list[Check] = []
    losses = {deadline: panel.loss("salf", deadline) for deadline in panel.tight}
    for deadline, loss in losses.items():
        if loss is None:
            checks.append(panel.diverged("salf", deadline))
        else:
            told = f"SALF at {deadline:g} µs loses {percents(loss)} of FedAvg's accuracy"
            checks.append(between(told, loss, most=MINOR))
    if len(losses) > 1:
        tightest, loosest = losses[panel.tight[0]], losses[panel.tight[-1]]
        if tightest is not None and loosest is not None:
            grown = paired(tightest, loosest)
            told = (
                f"from {panel.tight[-1]:g} to {panel.tight[0]:g} µs SALF's loss grows by "
                f"{percents(grown).removesuffix(' %')} points"
            )
            checks.append(between(told, grown, most=HARDLY))
    return checks


def _salf_over_asyncfl(panel: Panel) -> list[Check]:
    if not panel.tight:
        return []
    return [
        *(as_good(panel.at("salf", t), panel.at("asyncfl", t)) for t in panel.tight),
        better(panel.over_tight("salf"), panel.over_tight("asyncfl")),
    ]


def _above(*pairs: tuple[str, str], after: float, before: float) -> Callable[[Panel], list[Check]]:
    """The first of each pair is above the second at the deadlines in between."""
    return lambda panel: [
        better(panel.at(ours, t), panel.at(theirs, t))
        for t in panel.tight
        if after < t < before
        for ours, theirs in pairs
    ]


def _heterofl_and_drop(panel: Panel) -> list[Check]:
    low = _above(("heterofl", "drop"), after=0, before=LOW)
    moderate = _above(("drop", "heterofl"), after=LOW, before=MODERATE)
    return [*low(panel), *moderate(panel)]


def _stated_loss(method: str) -> Callable[[Panel], list[Check]]:
    def checks(panel: Panel) -> list[Check]:
        if not panel.tight:
            return []
        loss, stated = panel.loss(method, panel.tight[0]), STATED_LOSS[method]
        if loss is None:
            return [panel.diverged(method, panel.tight[0])]
        told = (
            f"{names.method(method)} at {panel.tight[0]:g} µs loses {percents(loss)}, the paper's "
            f"{percent(stated)}"
        )
        if method == "salf":
            return [between(told, loss, most=stated + SALF_ROUNDING)]
        return [between(told, loss, stated - TOLERANCE, stated + TOLERANCE)]

    return checks


def percent(share: float) -> str:
    """A share to a tenth of a percent."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def percents(shares: Sequence[float]) -> str:
    """The mean of the seeds' shares, with its interval: `3.1 ±0.9 %`."""
    found = interval(shares)
    if found.half is None:
        return percent(found.mean)
    return f"{100 * found.mean:.1f} ±{100 * found.half:.1f} %".replace("-", "−")


CHECKS: Mapping[str, Callable[[Panel], list[Check]]] = {
    "same": _same_without_stragglers,
    "minor": _minor_degradation,
    "salf_over_asyncfl": _salf_over_asyncfl,
    "heterofl_and_drop": _heterofl_and_drop,
    "asyncfl_over_both": _above(("asyncfl", "heterofl"), ("asyncfl", "drop"), after=0, before=LOW),
    **{method: _stated_loss(method) for method in STATED_LOSS},
}


def findings(panels: Mapping[tuple[str, str], Panel]) -> list[Finding]:
    """Each claim by the panel that the paper shows, with the verdicts of the others."""
    return [
        finding(
            "latency",
            "stated" if claim in STATED_LOSS else claim,
            checks(panels[PUBLISHED]),
            **(_stated(claim) if claim in STATED_LOSS else _TOLD),
            elsewhere=" ".join(filter(None, (_verdict(checks, p, panels[p]) for p in PLACES[1:]))),
        )
        for claim, checks in CHECKS.items()
    ]


# What the texts of the claims are filled in with.
_TOLD = {
    "full_pass": FULL_PASS,
    "same": SAME,
    "minor": f"{100 * MINOR:g} %",
    "hardly": 100 * HARDLY,
    "low": LOW,
    "moderate": MODERATE,
    **{method: text("latency", method) for method in STATED_LOSS},
}


def _stated(method: str) -> dict[str, str]:
    name, stated = names.method(method), percent(STATED_LOSS[method])
    why, bound = text("latency", method), f"within {100 * TOLERANCE:g} points of that"
    if method == "salf":
        stated, bound = (
            f"merely {stated}",
            f"at most {percent(STATED_LOSS[method] + SALF_ROUNDING)}",
        )
    by_table = 1 - TABLE_1["cnn", method][0.9] / VANILLA["cnn"]
    if by_table <= STATED_LOSS[method] - TOLERANCE:
        numbers = {"by_table": percent(by_table), "fewer": percent(straggler_share(1.0))}
        why = f"{why} {text('latency', 'own_table', method=name, **numbers)}"
    return {"method": name, "stated": stated, "bound": bound, "why_not": why}


def _verdict(judged: Callable[[Panel], list[Check]], place: tuple[str, str], panel: Panel) -> str:
    """The verdict of a panel that the paper does not show, in a few words."""
    if not (checks := judged(panel)):
        return ""
    verdict = judge("", checks).verdict
    passed = sum(check.passed is True for check in checks)
    counted = f" ({passed} of {len(checks)} checks)" if verdict is Verdict.IN_PART else ""
    return f"{place_name(*place)}: {verdict.value}{counted}."


def place_name(mapping: str, average: str) -> str:
    """A panel in words; the paper's own mapping is not mentioned."""
    convention = CONVENTIONS[average]
    return convention if mapping == "uniform" else f"By the clock, {convention.lower()}"
