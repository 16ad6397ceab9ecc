"""What the paper says about Table I, checked on accuracies of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from salf.report import names
from salf.reproduction.comparisons import (
    CONVENTIONS,
    TIE,
    Evidence,
    Measured,
    as_good,
    conclude,
    not_worse,
)
from salf.reproduction.paper import published
from salf.reproduction.presets import AVERAGES, METHODS, RATIOS, WITH_DEADLINE
from salf.reproduction.statistics import interval
from salf.reproduction.verdicts import Check, Finding, judge

MODELS = ("mlp", "cnn")
CLOSE = 0.05  # further than this from the paper's number is said aloud
NEAR_THE_CEILING = 0.03  # SALF to FedAvg at 90 %, as the equations say


@dataclass(frozen=True)
class Cells:
    """Test accuracies by model, method, way of averaging and ratio: one value per seed."""

    values: Mapping[tuple[str, str, str, float], Sequence[float]]

    def get(self, model: str, method: str, average: str, ratio: float) -> Sequence[float] | None:
        """The seeds' accuracies; None if a run diverged."""
        return self.values.get((model, method, average, ratio))

    def named(self, model: str, method: str, average: str, ratio: float) -> Measured:
        """The same, with the method's name."""
        return Measured(names.method(method), self.get(model, method, average, ratio))

    def fall(self, model: str, method: str, average: str) -> Measured:
        """From the fewest stragglers to the most, seed by seed."""
        few, many = (self.get(model, method, average, ratio) for ratio in (RATIOS[0], RATIOS[-1]))
        if few is None or many is None:
            return Measured(names.method(method), None)
        falls = [a - b for a, b in zip(few, many, strict=True)]
        return Measured(f"{names.method(method)} falls by", falls)


def findings(cells: Cells) -> list[Finding]:
    """What the paper says about the table, and what has to hold whatever it says."""
    return [
        *(_close(cells, model) for model in MODELS),
        *(_monotone(cells, average) for average in AVERAGES),
        *(_order(cells, average) for average in AVERAGES),
        *(_best(cells, average) for average in AVERAGES),
        *(_least_degradation(cells, average) for average in AVERAGES),
        _beats_drop(cells),
        _near_the_ceiling(cells),
    ]


def beside(cells: Cells, model: str) -> list[tuple[str, float, float, float]]:
    """(method, ratio, ours, the paper's), averaged over all users as published."""
    found = []
    for method in METHODS:
        for ratio in RATIOS[:1] if names.waits(method) else RATIOS:
            values = cells.get(model, method, "all", ratio)
            theirs = published(model, method, ratio)
            if values is not None and theirs is not None:
                found.append((method, ratio, interval(values).mean, theirs))
    return found


def place(model: str, ratio: float, method: str = "") -> str:
    """Where a number stands: `MLP Drop at 90 %`."""
    at = "" if names.waits(method) else f"at {names.percent(ratio)}"
    return " ".join(filter(None, [model.upper(), names.method(method), at]))


def _close(cells: Cells, model: str) -> Finding:
    checks = [
        Check(
            f"{place(model, ratio, method)}: ours {ours:.3f}, the paper's {theirs:.2f}",
            abs(ours - theirs) <= CLOSE,
        )
        for method, ratio, ours, theirs in beside(cells, model)
    ]
    return judge(
        f"The numbers of Table I, {model.upper()}: averaged over all users as published, ours are "
        f"within {CLOSE} of them.",
        checks,
    )


def _monotone(cells: Cells, average: str) -> Finding:
    evidence = []
    for model in MODELS:
        for method in WITH_DEADLINE:
            for fewer, more in pairwise(RATIOS):
                a, b = (
                    Measured(place(model, ratio, method), cells.get(model, method, average, ratio))
                    for ratio in (fewer, more)
                )
                evidence.append(as_good(a, b))
    return conclude(
        f"{CONVENTIONS[average]}: “for all the considered techniques, the higher the percentage "
        "of stragglers, the lower the test accuracy is” (no rise from one ratio to the next by "
        f"more than {TIE}).",
        evidence,
    )


def _order(cells: Cells, average: str) -> Finding:
    evidence = []
    for model in MODELS:
        for ratio in RATIOS:
            theirs = {m: told for m in WITH_DEADLINE if (told := published(model, m, ratio))}
            for pair in combinations(theirs, 2):
                better, worse = sorted(pair, key=theirs.__getitem__, reverse=True)
                if theirs[better] > theirs[worse]:
                    a, b = (cells.named(model, m, average, ratio) for m in (better, worse))
                    evidence.append(as_good(a, b, place(model, ratio)))
    return conclude(
        f"{CONVENTIONS[average]}: the order of the methods in Table I at each ratio of stragglers "
        f"(no pair the other way round by more than {TIE}).",
        evidence,
    )


def _best(cells: Cells, average: str) -> Finding:
    evidence = [
        as_good(
            cells.named(model, "salf", average, ratio),
            cells.named(model, other, average, ratio),
            place(model, ratio),
        )
        for model in MODELS
        for ratio in RATIOS
        for other in _others(model)
    ]
    return conclude(
        f"{CONVENTIONS[average]}: SALF is “consistently achieving the best performance of the "
        "trained model among all stragglers-constrained methods” (nowhere below another by "
        f"more than {TIE}).",
        evidence,
    )


def _least_degradation(cells: Cells, average: str) -> Finding:
    evidence = [
        as_good(
            cells.fall(model, other, average), cells.fall(model, "salf", average), model.upper()
        )
        for model in MODELS
        for other in _others(model)
    ]
    return conclude(
        f"{CONVENTIONS[average]}: “the degradation of SALF is notably lower compared to all other "
        f"baselines” (from {names.percent(RATIOS[0])} to {names.percent(RATIOS[-1])} stragglers).",
        evidence,
    )


def _beats_drop(cells: Cells) -> Finding:
    evidence = [
        not_worse(
            cells.named(model, "salf", "reached", ratio),
            cells.named(model, "drop", "reached", ratio),
            place(model, ratio),
        )
        for model in MODELS
        for ratio in RATIOS
    ]
    return conclude(
        "As the equations say: SALF is at least as good as Drop at every ratio, within the "
        "interval (our expectation; the paper has no such runs).",
        evidence,
    )


def _near_the_ceiling(cells: Cells) -> Finding:
    evidence: list[Evidence] = []
    most = RATIOS[-1]
    for model in MODELS:
        salf, fedavg = (cells.named(model, m, "reached", most) for m in ("salf", "fedavg"))
        if salf.seeds is None or fedavg.seeds is None:
            continue
        gap = interval(fedavg.seeds).mean - interval(salf.seeds).mean
        told = f"{place(model, most)}: {salf}, {fedavg}, a gap of {gap:.3f}"
        evidence.append(Check(told, gap <= NEAR_THE_CEILING))
    return conclude(
        f"As the equations say: SALF at {names.percent(most)} stragglers is within "
        f"{NEAR_THE_CEILING} of FedAvg (our expectation; the paper has “a minor gap”).",
        evidence,
    )


def _others(model: str) -> list[str]:
    """What SALF is compared with; the paper says nothing about HeteroFL on the MLP."""
    return [m for m in WITH_DEADLINE if m != "salf" and published(model, m, RATIOS[0]) is not None]
