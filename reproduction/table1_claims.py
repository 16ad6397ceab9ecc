"""The paper's claims about Table I, checked on our accuracies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean

from reproduction.comparisons import (
    TIE,
    Scores,
    as_good,
    better,
    within_the_interval,
)
from reproduction.paper import published
from reproduction.sizes import AVERAGES, METHODS, RATIOS, WITH_DEADLINE
from reproduction.statistics import paired
from reproduction.texts import finding
from reproduction.verdicts import Check, Finding
from salf.common.intervals import interval
from salf.report import names

MODELS = ("mlp", "cnn")
FEW, MANY = RATIOS[0], RATIOS[-1]
DRAMATIC = 0.1  # a fall that nobody would call small
CLOSE = 0.05  # numbers further than this from the paper's are named
# A minor gap from FedAvg, and where that comes from (MLP, 0.90 to 0.81).
MINOR_GAP = {
    "reached": (0.03, "a bound of ours"),
    "all": (0.09, "the largest gap in the paper's own table"),
}


TableKey = tuple[str, str, str, float]  # model, method, way of averaging, ratio of stragglers


@dataclass(frozen=True)
class Cells:
    """Test accuracies: one value per seed.

    Cells with a run that diverged are missing.
    """

    values: Mapping[TableKey, Sequence[float]]

    def get(self, model: str, method: str, average: str, ratio: float) -> Scores:
        """The seeds' accuracies, with the method's name."""
        return Scores(names.method(method), self.values.get((model, method, average, ratio)))

    def pair(
        self, model: str, other: str, average: str, ratio: float
    ) -> tuple[Scores, Scores, str]:
        """SALF's and another method's accuracies, and where that is."""
        ours, theirs = (self.get(model, method, average, ratio) for method in ("salf", other))
        return ours, theirs, place(model, ratio)

    def at(self, model: str, method: str, average: str, ratio: float) -> Scores:
        """Accuracies named by their place in the table."""
        seeds = self.values.get((model, method, average, ratio))
        return Scores(place(model, ratio, method), seeds)

    def fall(self, model: str, method: str, average: str) -> Scores:
        """From the fewest stragglers to the most, seed by seed."""
        few, many = (self.get(model, method, average, ratio).seeds for ratio in (FEW, MANY))
        if few is None or many is None:
            return Scores(names.method(method), None)
        return Scores(f"{names.method(method)} falls by", paired(few, many))

    def over_ratios(self, model: str, method: str, average: str) -> Scores:
        """The mean over the ratios, seed by seed."""
        cells = [self.get(model, method, average, ratio).seeds for ratio in RATIOS]
        return Scores.mean(names.method(method), cells)


def findings(cells: Cells) -> list[Finding]:
    """The paper's claims about the table, and what has to hold whatever it says."""
    both = zip(*(_findings(cells, average) for average in AVERAGES), strict=True)
    return [
        *(_close(cells, model) for model in MODELS),
        *(one for pair in both for one in pair),
        _beats_drop(cells),
    ]


def _findings(cells: Cells, average: str) -> list[Finding]:
    """The paper's claims about the table, for one way of averaging."""
    gap, origin = MINOR_GAP[average]
    claims = {
        "falls": _falls_with_stragglers(cells, average),
        "falls_much": _falls_much(cells, average),
        "order": _same_order(cells, average),
        "best": _salf_is_best(cells, average),
        "falls_least": _salf_falls_least(cells, average),
        "near_fedavg": [
            as_good(*cells.pair(model, "fedavg", average, MANY), margin=gap) for model in MODELS
        ],
    }
    ends = {"few": names.percent(FEW), "many": names.percent(MANY)}
    told = {"dramatic": DRAMATIC, "gap": gap, "origin": origin, **ends}
    return [finding("table1", claim, checks, average, **told) for claim, checks in claims.items()]


def beside(cells: Cells, model: str) -> list[tuple[str, float, float | None, float]]:
    """(method, ratio, ours, the paper's), averaged over all users as published.

    Ours is None where training diverged.
    """
    found = []
    for method in METHODS:
        for ratio in RATIOS[:1] if names.waits(method) else RATIOS:
            seeds = cells.get(model, method, "all", ratio).seeds
            if (theirs := published(model, method, ratio)) is not None:
                ours = None if seeds is None else interval(seeds).mean
                found.append((method, ratio, ours, theirs))
    return found


def place(model: str, ratio: float, method: str = "") -> str:
    """Where a number stands: `MLP Drop at 90 %`."""
    what = [model.upper(), *([names.method(method)] if method else [])]
    at = [] if method and names.waits(method) else [f"at {names.percent(ratio)}"]
    return " ".join([*what, *at])


def _close(cells: Cells, model: str) -> Finding:
    checks = [
        Check(f"{place(model, ratio, method)}: training diverged", False)
        if ours is None
        else Check(
            f"{place(model, ratio, method)}: ours {ours:.3f}, the paper's {theirs:.2f}",
            abs(ours - theirs) <= CLOSE,
        )
        for method, ratio, ours, theirs in beside(cells, model)
    ]
    return finding("table1", "close", checks, model=model.upper(), close=CLOSE)


def _falls_with_stragglers(cells: Cells, average: str) -> list[Check]:
    checks = []
    for model in MODELS:
        for method in ("salf", *_others(model)):
            at = {ratio: cells.at(model, method, average, ratio) for ratio in RATIOS}
            checks += [as_good(at[fewer], at[more]) for fewer, more in pairwise(RATIOS)]
            checks.append(better(at[FEW], at[MANY]))
    return checks


def _falls_much(cells: Cells, average: str) -> list[Check]:
    at = cells.at
    return [
        better(at(model, method, average, FEW), at(model, method, average, MANY), margin=DRAMATIC)
        for model in MODELS
        for method in ("drop", "heterofl")
        if published(model, method, MANY) is not None
    ]


def _same_order(cells: Cells, average: str) -> list[Check]:
    checks = []
    for model in MODELS:
        for ratio in RATIOS:
            theirs = {m: told for m in METHODS if (told := published(model, m, ratio))}
            for pair in combinations(theirs, 2):
                higher, lower = sorted(pair, key=theirs.__getitem__, reverse=True)
                if theirs[higher] > theirs[lower]:
                    a, b = (cells.get(model, m, average, ratio) for m in (higher, lower))
                    checks.append(better(a, b, place(model, ratio)))
    return checks


def _salf_is_best(cells: Cells, average: str) -> list[Check]:
    checks = []
    for model in MODELS:
        for other in _others(model):
            checks += [as_good(*cells.pair(model, other, average, ratio)) for ratio in RATIOS]
            ours, theirs = (cells.over_ratios(model, m, average) for m in ("salf", other))
            checks.append(better(ours, theirs, f"{model.upper()} over all ratios"))
    return checks


def _salf_falls_least(cells: Cells, average: str) -> list[Check]:
    falls = {(model, m): cells.fall(model, m, average) for model in MODELS for m in WITH_DEADLINE}
    return [
        better(falls[model, "salf"], falls[model, m], model.upper(), margin=TIE, less=True)
        for model in MODELS
        for m in _others(model)
    ]


def _others(model: str) -> list[str]:
    """The methods that SALF is compared with; the paper says nothing about HeteroFL on the MLP."""
    return [m for m in WITH_DEADLINE if m != "salf" and published(model, m, FEW) is not None]


def _beats_drop(cells: Cells) -> Finding:
    checks, below = [], []
    for model in MODELS:
        for ratio in RATIOS:
            salf, drop, where = cells.pair(model, "drop", "reached", ratio)
            checks.append(check := within_the_interval(salf, drop, where))
            if salf.seeds and drop.seeds and fmean(salf.seeds) < fmean(drop.seeds):
                below.append(check.what)
    told = f"Below it on average: {'; '.join(below)}." if below else ""
    return finding("table1", "beats_drop", checks, below=told)
