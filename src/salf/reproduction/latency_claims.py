"""What the paper says about accuracy against the deadline, judged by numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from salf.report import names
from salf.reproduction.comparisons import (
    CONVENTIONS,
    TIE,
    Measured,
    as_good,
    better,
    between,
)
from salf.reproduction.deadlines import FULL_PASS, straggler_share
from salf.reproduction.paper import TABLE_1, VANILLA
from salf.reproduction.presets import WITH_DEADLINE
from salf.reproduction.statistics import interval, paired
from salf.reproduction.verdicts import Check, Finding, Verdict, judge

# Mappings and ways of averaging: the first is what the paper shows.
PLACES = tuple((m, average) for m in ("uniform", "timed") for average in ("all", "reached"))
PUBLISHED = PLACES[0]

# What the paper says is lost at the tightest deadline, as a share of FedAvg's accuracy.
STATED_LOSS = {"salf": 0.05, "asyncfl": 0.15, "heterofl": 0.70, "drop": 0.90}
SALF_ROUNDING = 0.005  # “merely 5 %” is a rounded number
TOLERANCE = 0.05  # for the others, both ways
MINOR, HARDLY = 0.05, 0.03  # a small loss, and how little more it may be at the tightest deadline
SAME = 0.005  # sums in another order are rounded otherwise, and a training amplifies that
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
        """Those at which there are stragglers."""
        return [deadline for deadline in self.deadlines if deadline < FULL_PASS]

    def at(self, method: str, deadline: float) -> Measured:
        """One point."""
        name = f"{names.method(method)} at {deadline:g} µs"
        return Measured(name, self.accuracies.get((method, deadline)))

    def over_tight(self, method: str) -> Measured:
        """The mean over the deadlines at which there are stragglers, seed by seed."""
        points = [self.accuracies.get((method, deadline)) for deadline in self.tight]
        known = [point for point in points if point is not None]
        whole = bool(known) and len(known) == len(points)
        seeds = [fmean(seed) for seed in zip(*known, strict=True)] if whole else None
        return Measured(f"{names.method(method)} over all deadlines", seeds)

    def loss(self, method: str, deadline: float) -> list[float] | None:
        """What is lost, as a share of FedAvg's accuracy, seed by seed; None if one diverged."""
        ours = self.accuracies.get((method, deadline))
        if ours is None or self.vanilla is None:
            return None
        return [1 - a / v for a, v in zip(ours, self.vanilla, strict=True)]

    def diverged(self, method: str, deadline: float) -> Check:
        """What is said in the place of a loss that is not known."""
        if self.accuracies.get((method, deadline)) is None:
            return Check(f"{self.at(method, deadline).name}: training diverged", False)
        return Check("FedAvg: training diverged", None)


def same_without_stragglers(panel: Panel) -> list[Check]:
    """All methods give what FedAvg gives where nobody is a straggler."""
    evidence: list[Check] = []
    for deadline in panel.deadlines:
        for method in WITH_DEADLINE if deadline >= FULL_PASS else ():
            ours = panel.at(method, deadline)
            if ours.seeds is None or panel.vanilla is None:
                evidence.append(panel.diverged(method, deadline))
                continue
            apart = max(abs(a - v) for a, v in zip(ours.seeds, panel.vanilla, strict=True))
            evidence.append(
                Check(f"{ours.name} is up to {apart:.4f} away from FedAvg", apart <= SAME)
            )
    return evidence


def minor_degradation(panel: Panel) -> list[Check]:
    """SALF loses little at any deadline, and hardly more at the tightest than at the loosest."""
    evidence: list[Check] = []
    losses = {deadline: panel.loss("salf", deadline) for deadline in panel.tight}
    for deadline, loss in losses.items():
        if loss is None:
            evidence.append(panel.diverged("salf", deadline))
        else:
            told = f"SALF at {deadline:g} µs loses {percents(loss)} of FedAvg's accuracy"
            evidence.append(between(told, loss, most=MINOR))
    if len(losses) > 1:
        tightest, loosest = losses[panel.tight[0]], losses[panel.tight[-1]]
        if tightest is not None and loosest is not None:
            grown = paired(tightest, loosest)
            told = (
                f"from {panel.tight[-1]:g} to {panel.tight[0]:g} µs SALF's loss grows by "
                f"{percents(grown).removesuffix(' %')} points"
            )
            evidence.append(between(told, grown, most=HARDLY))
    return evidence


def salf_over_asyncfl(panel: Panel) -> list[Check]:
    """SALF is nowhere below AsyncFL, and above it over all deadlines."""
    if not panel.tight:
        return []
    return [
        *(as_good(panel.at("salf", t), panel.at("asyncfl", t)) for t in panel.tight),
        better(panel.over_tight("salf"), panel.over_tight("asyncfl")),
    ]


def heterofl_and_drop(panel: Panel) -> list[Check]:
    """HeteroFL is above Drop at low deadlines, and Drop above HeteroFL at moderate ones."""
    return [
        *(better(panel.at("heterofl", t), panel.at("drop", t)) for t in panel.tight if t < LOW),
        *(
            better(panel.at("drop", t), panel.at("heterofl", t))
            for t in panel.tight
            if LOW < t < MODERATE
        ),
    ]


def asyncfl_over_both(panel: Panel) -> list[Check]:
    """AsyncFL is above HeteroFL and Drop at low deadlines."""
    return [
        better(panel.at("asyncfl", t), panel.at(other, t))
        for t in panel.tight
        if t < LOW
        for other in ("heterofl", "drop")
    ]


def stated_loss(method: str) -> Callable[[Panel], list[Check]]:
    """What a method loses at the tightest deadline, beside what the paper says it does."""

    def evidence(panel: Panel) -> list[Check]:
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

    return evidence


@dataclass(frozen=True)
class Claim:
    """What the paper says about its figure, and how a panel is judged by it."""

    text: str
    evidence: Callable[[Panel], list[Check]]
    why_not: str = ""


_HETEROFL = (
    "The paper does not say how HeteroFL's narrow networks are combined, and it is not in the "
    "authors' script; here the part of the network that everybody holds gets the average of all "
    "users, however many straggle."
)
_DROP = (
    "Averaged over all users, Drop's steps shrink with the share of stragglers; how far it then "
    "gets in so many rounds depends on details. The authors' script (github.com/langnatalie/SALF) "
    "drops the same users in all rounds and keeps momentum at the users."
)
_ASYNCFL = (
    "Averaged over all users, AsyncFL's steps shrink with the updates that are still to come, and "
    "the paper leaves open what a late update is and how much it counts."
)


def _stated(method: str, why: str) -> Claim:
    bound = (
        f"at most {percent(STATED_LOSS[method] + SALF_ROUNDING)}"
        if method == "salf"
        else f"within {100 * TOLERANCE:g} points of that"
    )
    return Claim(
        f"At the tightest deadline {names.method(method)} loses "
        f"{'merely ' if method == 'salf' else ''}{percent(STATED_LOSS[method])} of vanilla FL's "
        f"accuracy ({bound}).",
        stated_loss(method),
        f"{why} {_own_table(method)}".strip(),
    )


def _own_table(method: str) -> str:
    """The paper's table beside the paper's figure."""
    loss = 1 - TABLE_1["cnn", method][0.9] / VANILLA["cnn"]
    if loss > STATED_LOSS[method] - TOLERANCE:
        return ""
    return (
        f"The paper's two numbers do not agree either: by its Table I {names.method(method)} loses "
        f"{percent(loss)} at 90 % stragglers, although 1 µs has fewer, "
        f"{percent(straggler_share(1.0))}."
    )


def percent(share: float) -> str:
    """A share to a tenth of a percent."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def percents(shares: Sequence[float]) -> str:
    """The mean of the seeds' shares, with its interval: `3.1 ±0.9 %`."""
    found = interval(shares)
    if found.half is None:
        return percent(found.mean)
    return f"{100 * found.mean:.1f} ±{100 * found.half:.1f} %".replace("-", "−")


CLAIMS = (
    Claim(
        f"“All FL methods coincide with full FedAvg when the deadline surpasses” {FULL_PASS} µs "
        f"(each seed's test accuracy within {SAME}).",
        same_without_stragglers,
    ),
    Claim(
        "SALF “yields a minor [degradation] in performance which hardly grows when the latency is "
        f"decreased” (nowhere more than {percent(MINOR)} of FedAvg's accuracy, and at most "
        f"{100 * HARDLY:g} points more at the tightest than at the loosest deadline).",
        minor_degradation,
    ),
    Claim(
        f"SALF “outperforms” AsyncFL below {FULL_PASS} µs (nowhere below it by more than {TIE}, "
        "and significantly above it over all these deadlines).",
        salf_over_asyncfl,
    ),
    Claim(
        f"Below {LOW} µs HeteroFL “is superior to drop-stragglers”, “the opposite holds” from "
        f"{LOW} to {MODERATE:g} µs (significantly).",
        heterofl_and_drop,
        f"{_HETEROFL} {_DROP}",
    ),
    Claim(
        f"Below {LOW} µs AsyncFL “is superior to both” HeteroFL and Drop (significantly).",
        asyncfl_over_both,
        f"{_ASYNCFL} {_HETEROFL}",
    ),
    _stated("salf", ""),
    _stated("asyncfl", _ASYNCFL),
    _stated("heterofl", _HETEROFL),
    _stated("drop", _DROP),
)


def findings(panels: Mapping[tuple[str, str], Panel], note: str = "") -> list[Finding]:
    """Each claim by the panel that the paper shows, and in a word by the others."""
    return [
        judge(
            claim.text,
            claim.evidence(panels[PUBLISHED]),
            " ".join(filter(None, [_elsewhere(claim, panels), note])),
            why_not=claim.why_not,
            untested="there is no such deadline in this preset",
        )
        for claim in CLAIMS
    ]


def _elsewhere(claim: Claim, panels: Mapping[tuple[str, str], Panel]) -> str:
    """The verdicts of the panels that the paper does not show."""
    verdicts = []
    for place in PLACES:
        checks = claim.evidence(panels[place])
        if place == PUBLISHED or not checks:
            continue
        verdict = judge(claim.text, checks).verdict
        passed = sum(check.passed is True for check in checks)
        counted = f" ({passed} of {len(checks)} checks)" if verdict is Verdict.IN_PART else ""
        verdicts.append(f"{place_name(*place)}: {verdict.value}{counted}.")
    return " ".join(verdicts)


def place_name(mapping: str, average: str) -> str:
    """A panel in words; the paper's own mapping goes without saying."""
    convention = CONVENTIONS[average]
    return convention if mapping == "uniform" else f"By the layers' times, {convention.lower()}"
