"""The convergence profiles on MNIST at 90 % stragglers, all methods, averaged both ways."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from salf.experiments.config import Config
from salf.report import names
from salf.reproduction import curves
from salf.reproduction.comparisons import (
    CONVENTIONS,
    HEADINGS,
    ONE_SEED,
    TIE,
    WHY_ANOTHER_ORDER,
    Measured,
    as_good,
    better,
)
from salf.reproduction.curves import Course, Point
from salf.reproduction.item import Found, Item, Outcome, Remember
from salf.reproduction.paper import published
from salf.reproduction.presets import AVERAGES, CURVES_AT, METHODS, Preset
from salf.reproduction.statistics import over_seeds, paired
from salf.reproduction.verdicts import Check, Finding, judge

# Accuracies of each method over the rounds, one course per seed; None if one diverged.
Courses = Mapping[str, Sequence[Course] | None]


class Convergence(Item):
    """A model's validation accuracy over the rounds."""

    model: ClassVar[str]

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Config]:
        """All methods, both ways of averaging, every seed; the same runs as in Table I."""
        return [config for configs in self._configs(preset).values() for config in configs]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The curves, and whether the methods come in the paper's order."""
        configs = self._configs(preset)
        courses = {key: curves.courses(found, seeds) for key, seeds in configs.items()}
        model, rounds = self.model.upper(), preset.configs[self.model].rounds
        judged = _judged(self.model)
        left_out = [names.method(method) for method in METHODS if method not in judged]
        figure = curves.chart(
            [
                Point(names.method(method), t, accuracy, HEADINGS[average])
                for (average, method), runs in courses.items()
                for t, accuracy in (curves.mean_curve(runs) if runs is not None else [])
            ],
            curves.method_lines(METHODS),
            title=f"{model} on MNIST: accuracy over the rounds at "
            f"{names.percent(CURVES_AT)} stragglers",
            subtitle=[
                f"{preset.configs[self.model].users} users, {rounds} rounds, "
                f"{over_seeds(preset.seeds)}; preset {preset.name}. FedAvg waits for everybody."
            ],
            x="Round",
            y="Accuracy on held-out data",
            height=260,
        )
        return Outcome(
            rows=curves.curve_rows(found, self.tasks(preset, remember)),
            figure=figure,
            description=f"Accuracy of the {model} on held-out images over {rounds} rounds, one "
            "line per method, in two panels: averaged as the equations say and as published.",
            caption="Accuracy on the training images held back. Dashed: FedAvg, which has no "
            "deadline. "
            + ("Bands: 95 % interval of the mean. " if preset.seeds > 1 else "One seed, no bands. ")
            + "The runs are those of Table I.",
            findings=[
                finding
                for average in AVERAGES
                for finding in findings(
                    average,
                    {method: courses[average, method] for method in judged},
                    "" if preset.seeds > 1 else ONE_SEED,
                )
            ],
            intro=f"{model}, {rounds} rounds, {names.percent(CURVES_AT)} of the users stragglers "
            f"in every round, {over_seeds(preset.seeds)}. Methods are compared seed by seed, by "
            "their mean accuracy over all evaluated rounds (the area under the curve) and by that "
            "of the last round; their distance from FedAvg is the absolute difference of these."
            + (
                f" {names.listed(left_out)} is drawn but not judged: the paper leaves it out for "
                f"the {model}."
                if left_out
                else ""
            ),
        )

    def _configs(self, preset: Preset) -> dict[tuple[str, str], list[Config]]:
        """By way of averaging and method, one config per seed."""
        return {
            (average, method): [
                preset.config(self.model, method, average, CURVES_AT, seed)
                for seed in range(preset.seeds)
            ]
            for average in AVERAGES
            for method in METHODS
        }


class MlpConvergence(Convergence):
    """Fig. [convergence_mnist_mlp]."""

    name: ClassVar[str] = "fig-mlp"
    title: ClassVar[str] = "Convergence of the MLP on MNIST"
    model: ClassVar[str] = "mlp"


class CnnConvergence(Convergence):
    """Fig. [convergence_mnist_cnn2]."""

    name: ClassVar[str] = "fig-cnn"
    title: ClassVar[str] = "Convergence of the CNN on MNIST"
    model: ClassVar[str] = "cnn"


def findings(average: str, courses: Courses, note: str = "") -> list[Finding]:
    """The paper's order of the methods, for one way of averaging."""
    convention, why_not = CONVENTIONS[average], WHY_ANOTHER_ORDER[average]
    weak = [method for method in ("drop", "heterofl") if method in courses]
    weak_names = names.listed([names.method(method) for method in weak])
    profiles, ends = (
        {method: Measured(names.method(method), of(seeds)) for method, seeds in courses.items()}
        for of in (curves.profiles, curves.ends)
    )
    second: list[Check] = []
    inferior: list[Check] = []
    for where, score in (("over all rounds", profiles), ("at the end", ends)):
        second += [as_good(score["asyncfl"], score[m], where) for m in weak]
        inferior += [better(score[m], score[w], where) for m in ("salf", "asyncfl") for w in weak]
    return [
        judge(
            f"{convention}: SALF is “the close[s]t to vanilla FL” (significantly nearer to FedAvg "
            f"than each other method over all rounds, and at the end no other is nearer by more "
            f"than {TIE}).",
            [
                *_nearest(better, profiles, ["asyncfl", *weak], "over all rounds"),
                *_nearest(as_good, ends, ["asyncfl", *weak], "at the end"),
            ],
            note,
            why_not=why_not,
        ),
        judge(
            f"{convention}: “AsyncFL is the second best” (not below {weak_names} by more than "
            f"{TIE}).",
            second,
            note,
            why_not=why_not,
        ),
        judge(
            f"{convention}: “an inferior performance” of {weak_names} (significantly below both "
            "SALF and AsyncFL).",
            inferior,
            note,
            why_not=why_not,
        ),
    ]


def _nearest(
    compare: Callable[..., Check], score: Mapping[str, Measured], others: Sequence[str], where: str
) -> list[Check]:
    """SALF's distance from FedAvg beside those of others."""
    ceiling = score["fedavg"].seeds
    if ceiling is None:
        return [Check(f"{where}: FedAvg: training diverged", None)]

    def distance(method: str) -> Measured:
        name, seeds = score[method].name, score[method].seeds
        apart = None if seeds is None else [abs(each) for each in paired(seeds, ceiling)]
        return Measured(name, apart)

    ours = distance("salf")
    return [compare(ours, distance(m), f"from FedAvg {where}", less=True) for m in others]


def _judged(model: str) -> list[str]:
    """The methods of which the paper says something for this model."""
    return [m for m in METHODS if published(model, m, CURVES_AT) is not None]
