"""What the paper says about Table I, checked on accuracies of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from salf.report import names
from salf.reproduction.paper import published
from salf.reproduction.presets import AVERAGES, METHODS, RATIOS
from salf.reproduction.statistics import at_least, interval
from salf.reproduction.verdicts import Check, Finding, judge

MODELS = ("mlp", "cnn")
CLOSE = 0.05  # further than this from the paper's number is said aloud
NEAR_THE_CEILING = 0.03  # SALF to FedAvg at 90 %, as the equations say
DEADLINE_METHODS = tuple(method for method in METHODS if method != "fedavg")


@dataclass(frozen=True)
class Cells:
    """Test accuracies by model, method, way of averaging and ratio: one value per seed."""

    values: Mapping[tuple[str, str, str, float], Sequence[float]]

    def get(self, model: str, method: str, average: str, ratio: float) -> Sequence[float] | None:
        """The seeds' accuracies; None if a run diverged."""
        return self.values.get((model, method, average, ratio))

    def text(self, model: str, method: str, average: str, ratio: float) -> str:
        """As in the table."""
        values = self.get(model, method, average, ratio)
        return "–" if values is None else str(interval(values))


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


def _close(cells: Cells, model: str) -> Finding:
    checks = []
    for method, ratio, ours, theirs in beside(cells, model):
        told = f"{cell_name(model, method, ratio)} ours {ours:.3f}, the paper's {theirs:.2f}"
        checks.append(Check(told, abs(ours - theirs) <= CLOSE))
    return judge(
        f"The numbers of Table I, {model.upper()}: averaged over all users as published, ours are "
        f"within {CLOSE} of them.",
        checks,
    )


def beside(cells: Cells, model: str) -> list[tuple[str, float, float, float]]:
    """(method, ratio, ours, the paper's), averaged over all users as published."""
    found = []
    for method in METHODS:
        for ratio in RATIOS[:1] if method == "fedavg" else RATIOS:
            values = cells.get(model, method, "all", ratio)
            theirs = published(model, method, ratio)
            if values is not None and theirs is not None:
                found.append((method, ratio, interval(values).mean, theirs))
    return found


def _monotone(cells: Cells, average: str) -> Finding:
    checks = []
    for model in MODELS:
        for method in DEADLINE_METHODS:
            for fewer, more in pairwise(RATIOS):
                a, b = (cells.get(model, method, average, ratio) for ratio in (fewer, more))
                if a is not None and b is not None:
                    told = (
                        f"{_name(model, method)} rises from {interval(a)} at "
                        f"{names.percent(fewer)} to {interval(b)} at {names.percent(more)}"
                    )
                    checks.append(Check(told, at_least(a, b)))
    return judge(
        f"{_convention(average)}: “for all the considered techniques, the higher the percentage "
        "of stragglers, the lower the test accuracy is” (no significant rise from one ratio to "
        "the next).",
        checks,
    )


def _order(cells: Cells, average: str) -> Finding:
    checks = []
    for model in MODELS:
        for ratio in RATIOS:
            for one, other in combinations(DEADLINE_METHODS, 2):
                theirs = {m: published(model, m, ratio) for m in (one, other)}
                ours = {m: cells.get(model, m, average, ratio) for m in (one, other)}
                if None in theirs.values() or None in ours.values():
                    continue
                better, worse = sorted(theirs, key=lambda m: theirs[m] or 0.0, reverse=True)
                if theirs[better] == theirs[worse]:
                    continue
                a, b = ours[better] or [], ours[worse] or []
                told = (
                    f"{cell_name(model, '', ratio)} {names.method(better)} {interval(a)} is below "
                    f"{names.method(worse)} {interval(b)}"
                )
                checks.append(Check(told, at_least(a, b)))
    return judge(
        f"{_convention(average)}: the order of the methods in Table I at each ratio of stragglers "
        "(no pair significantly the other way round).",
        checks,
    )


def _best(cells: Cells, average: str) -> Finding:
    checks = []
    for model in MODELS:
        for ratio in RATIOS:
            salf = cells.get(model, "salf", average, ratio)
            for other in DEADLINE_METHODS:
                theirs = cells.get(model, other, average, ratio)
                # The paper says nothing about HeteroFL on the MLP.
                if other == "salf" or published(model, other, ratio) is None:
                    continue
                if salf is not None and theirs is not None:
                    told = (
                        f"{cell_name(model, '', ratio)} SALF {interval(salf)}, "
                        f"{names.method(other)} {interval(theirs)}"
                    )
                    checks.append(Check(told, at_least(salf, theirs)))
    return judge(
        f"{_convention(average)}: SALF is “consistently achieving the best performance of the "
        "trained model among all stragglers-constrained methods” (nowhere significantly below "
        "another).",
        checks,
    )


def _least_degradation(cells: Cells, average: str) -> Finding:
    """From the fewest stragglers to the most."""
    checks = []
    fewest, most = RATIOS[0], RATIOS[-1]
    for model in MODELS:
        falls = {}
        for method in DEADLINE_METHODS:
            a, b = (cells.get(model, method, average, ratio) for ratio in (fewest, most))
            if a is not None and b is not None and published(model, method, most) is not None:
                falls[method] = [x - y for x, y in zip(a, b, strict=True)]
        if salf := falls.pop("salf", None):
            for method, fall in falls.items():
                told = (
                    f"{model.upper()} SALF falls by {interval(salf)}, {names.method(method)} by "
                    f"{interval(fall)}"
                )
                checks.append(Check(told, at_least(fall, salf)))
    return judge(
        f"{_convention(average)}: “the degradation of SALF is notably lower compared to all other "
        f"baselines” (from {names.percent(fewest)} to {names.percent(most)} stragglers).",
        checks,
    )


def _beats_drop(cells: Cells) -> Finding:
    checks = []
    for model in MODELS:
        for ratio in RATIOS:
            salf, drop = (cells.get(model, m, "reached", ratio) for m in ("salf", "drop"))
            if salf is not None and drop is not None:
                told = f"{cell_name(model, '', ratio)} SALF {interval(salf)}, Drop {interval(drop)}"
                checks.append(Check(told, at_least(salf, drop)))
    return judge(
        "As the equations say: SALF is at least as good as Drop at every ratio, within the "
        "interval (our expectation; the paper has no such runs).",
        checks,
    )


def _near_the_ceiling(cells: Cells) -> Finding:
    checks, most = [], RATIOS[-1]
    for model in MODELS:
        salf, fedavg = (cells.get(model, m, "reached", most) for m in ("salf", "fedavg"))
        if salf is not None and fedavg is not None:
            gap = interval(fedavg).mean - interval(salf).mean
            told = (
                f"{cell_name(model, '', most)} SALF {interval(salf)}, FedAvg {interval(fedavg)}: a "
                f"gap of {gap:.3f}"
            )
            checks.append(Check(told, gap <= NEAR_THE_CEILING))
    return judge(
        f"As the equations say: SALF at {names.percent(most)} stragglers is within "
        f"{NEAR_THE_CEILING} of FedAvg (our expectation; the paper has “a minor gap”).",
        checks,
    )


def _convention(average: str) -> str:
    return "As the equations say" if average == "reached" else "As published"


def _name(model: str, method: str) -> str:
    return " ".join(filter(None, [model.upper(), names.method(method)]))


def cell_name(model: str, method: str, ratio: float) -> str:
    """A cell as a sentence begins: `MLP Drop at 90 %:`."""
    at = "" if method == "fedavg" else f" at {names.percent(ratio)}"
    return f"{_name(model, method)}{at}:"
