"""The convergence profiles on MNIST at 90 % stragglers, all methods, averaged both ways."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reproduction import curves
from reproduction.comparisons import HEADINGS, Scores, as_good, better, one_seed
from reproduction.curves import Course
from reproduction.item import Found, Outcome, Trained
from reproduction.paper import published
from reproduction.sizes import AVERAGES, CURVES_AT, METHODS, Size
from reproduction.statistics import paired
from reproduction.texts import about, finding, heading, text
from reproduction.verdicts import Check, Finding, noted
from salf.common.intervals import over_seeds
from salf.report import names
from salf.runs.config import Config

# Accuracies of each method over the rounds, one course per seed; None if one diverged.
Courses = Mapping[str, Sequence[Course] | None]


@dataclass(frozen=True)
class Convergence(Trained):
    """A model's validation accuracy over the rounds."""

    name: str
    title: str
    model: str

    def configs(self, size: Size) -> Mapping[tuple[str, str], Sequence[Config]]:
        """Runs by way of averaging and method, which are those of Table I."""
        return {
            (average, method): size.seeded(self.model, method, average, CURVES_AT)
            for average in AVERAGES
            for method in METHODS
        }

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The curves, and whether the methods come in the paper's order."""
        configs = self.configs(size)
        courses = {key: curves.courses(found, seeds) for key, seeds in configs.items()}
        judged = [m for m in METHODS if published(self.model, m, CURVES_AT) is not None]
        left_out = names.listed([names.method(m) for m in METHODS if m not in judged])
        told = {
            "model": self.model.upper(),
            "config": size.configs[self.model],
            "size": size,
            "seeds": over_seeds(size.seeds),
            "stragglers": names.percent(CURVES_AT),
            "bands": "Bands: 95 % interval of the mean."
            if size.seeds > 1
            else "One seed, no bands.",
        }
        told["left_out"] = (
            text("convergence", "left_out", methods=left_out, **told) if left_out else ""
        )
        points = [
            point
            for (average, method), runs in courses.items()
            for point in curves.points(names.method(method), runs, HEADINGS[average])
        ]
        lines = names.lines(METHODS)
        return Outcome(
            rows=curves.curve_rows(found, [run for runs in configs.values() for run in runs]),
            figure=curves.figure(points, lines, height=260, **heading("convergence", **told)),
            findings=[
                noted(one, one_seed(size.seeds))
                for average in AVERAGES
                for one in findings(average, {m: courses[average, m] for m in judged})
            ],
            **about("convergence", **told),
        )


MLP, CNN = (
    Convergence(f"fig-{model}", text("convergence", "title", model=model.upper()), model)
    for model in ("mlp", "cnn")
)


def findings(average: str, courses: Courses) -> list[Finding]:
    """The paper's order of the methods, for one way of averaging."""
    weak = [method for method in ("drop", "heterofl") if method in courses]
    scores = {
        where: {m: Scores(names.method(m), of(seeds)) for m, seeds in courses.items()}
        for where, of in (("over all rounds", curves.profiles), ("at the end", curves.ends))
    }
    everywhere = scores.items()
    claims = {
        "closest": [
            check
            for compare, (where, score) in zip((better, as_good), everywhere, strict=True)
            for check in _nearest(compare, score, ["asyncfl", *weak], where)
        ],
        "second": [
            as_good(score["asyncfl"], score[m], where) for where, score in everywhere for m in weak
        ],
        "inferior": [
            better(score[m], score[w], where)
            for where, score in everywhere
            for m in ("salf", "asyncfl")
            for w in weak
        ],
    }
    told = names.listed([names.method(method) for method in weak])
    return [finding("convergence", c, checks, average, weak=told) for c, checks in claims.items()]


def _nearest(
    compare: Callable[..., Check], score: Mapping[str, Scores], others: Sequence[str], where: str
) -> list[Check]:
    """SALF's distance from FedAvg beside those of others."""
    ceiling = score["fedavg"].seeds
    if ceiling is None:
        return [Check(f"{where}: FedAvg: training diverged", None)]

    def distance(method: str) -> Scores:
        seeds = score[method].seeds
        apart = None if seeds is None else [abs(each) for each in paired(seeds, ceiling)]
        return Scores(score[method].name, apart)

    ours = distance("salf")
    return [compare(ours, distance(m), f"from FedAvg {where}", less=True) for m in others]
