"""The convergence profiles on MNIST at 90 % stragglers, all methods, averaged both ways."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from salf.experiments.config import Config
from salf.report import names
from salf.reproduction import curves
from salf.reproduction.comparisons import (
    CONVENTIONS,
    HEADINGS,
    ONE_SEED,
    TIE,
    Measured,
    as_good,
    better,
    conclude,
)
from salf.reproduction.curves import Course, Point
from salf.reproduction.item import Found, Item, Outcome, Remember
from salf.reproduction.paper import published
from salf.reproduction.presets import AVERAGES, CURVES_AT, METHODS, Preset
from salf.reproduction.statistics import over_seeds
from salf.reproduction.verdicts import Check, Finding

# Accuracies of each method over the rounds, one course per seed; None if one diverged.
Courses = Mapping[str, Sequence[Course] | None]

# Why the order is not the paper's, as far as it can be known.
_WHY_NOT = {
    "reached": "Averaged over the users that reached a layer, no method's steps shrink with the "
    "share of stragglers, and on i.i.d. data the few users that finish stand for all, so that "
    "Drop and HeteroFL lose little. AsyncFL's late updates come from old models, at a full weight.",
    "all": "The paper leaves open how AsyncFL's late updates and HeteroFL's narrow networks enter "
    "the average. Here a late update counts once, divided by all users, so that AsyncFL's steps "
    "are shorter than SALF's in every layer; and the part of the network that everybody holds "
    "gets steps of full length, however many straggle.",
}


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
            "of the last round."
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
    convention, why_not = CONVENTIONS[average], _WHY_NOT[average]
    weak = [method for method in ("drop", "heterofl") if method in courses]
    weak_names = names.listed([names.method(method) for method in weak])
    measures = {
        "over all rounds": {m: curves.profiles(seeds) for m, seeds in courses.items()},
        "at the end": {m: curves.ends(seeds) for m, seeds in courses.items()},
    }
    closest: list[Check] = []
    second: list[Check] = []
    inferior: list[Check] = []
    for where, values in measures.items():
        score = {method: Measured(names.method(method), v) for method, v in values.items()}
        closest += [as_good(score["salf"], score[m], where) for m in ("asyncfl", *weak)]
        second += [as_good(score["asyncfl"], score[m], where) for m in weak]
        inferior += [better(score[m], score[w], where) for m in ("salf", "asyncfl") for w in weak]
    return [
        conclude(
            f"{convention}: SALF is “the close[s]t to vanilla FL” (no other method above it by "
            f"more than {TIE}, over all rounds and at the end).",
            closest,
            why_not=why_not,
            note=note,
        ),
        conclude(
            f"{convention}: “AsyncFL is the second best” (not below {weak_names} by more than "
            f"{TIE}).",
            second,
            why_not=why_not,
            note=note,
        ),
        conclude(
            f"{convention}: “an inferior performance” of {weak_names} (significantly below both "
            "SALF and AsyncFL).",
            inferior,
            why_not=why_not,
            note=note,
        ),
    ]


def _judged(model: str) -> list[str]:
    """The methods of which the paper says something for this model."""
    return [m for m in METHODS if published(model, m, CURVES_AT) is not None]
