"""VGG nets on CIFAR-10: does SALF converge, what does depth do, and how bad is 90 %."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import ClassVar, NamedTuple

from salf.experiments.config import PRESETS as PAPER_CONFIGS
from salf.experiments.config import Config
from salf.report import names
from salf.report.style import Spec
from salf.reproduction import curves
from salf.reproduction.comparisons import (
    CONVENTIONS,
    HEADINGS,
    ONE_SEED,
    Measured,
    as_good,
    better,
)
from salf.reproduction.curves import Course, Line, Point
from salf.reproduction.item import Found, Item, Outcome, Remember
from salf.reproduction.presets import AVERAGES, PAPER, Preset
from salf.reproduction.statistics import interval, over_seeds, paired
from salf.reproduction.verdicts import Check, Finding, judge, of_a_part

PAPER_ROUNDS = PAPER_CONFIGS["cifar-vgg11"].rounds
TIGHT = 0.9
SHARES = (0.3, 0.5, 0.7)
TRAINING_IMAGES = 50_000
CHANCE = 0.1  # ten classes of equal size
HALF_WAY = 0.5  # how far up from chance to FedAvg's end a training that converges gets, at least
BELOW_BEST = 0.05  # a training that ends further below its best accuracy has not settled
NEAR_THE_CEILING = 0.05  # what counts as approaching FedAvg
LEARNED = 0.5  # before FedAvg itself is there, being near it says nothing

# Light to dark, around SALF's own colour.
_SHADES = {0.3: "#F0A56B", 0.5: "#D55E00", 0.7: "#7A2E00"}


class Case(NamedTuple):
    """A net trained by a method. FedAvg, which waits, has one case a net."""

    net: str
    method: str
    average: str
    stragglers: float

    @classmethod
    def waiting(cls, net: str) -> "Case":
        """The ceiling."""
        return cls(net, "fedavg", "", 0.0)

    def __str__(self) -> str:
        share = "" if names.waits(self.method) else f" ({names.percent(self.stragglers)})"
        return f"{_net(self.net)} {names.method(self.method)}{share}"


# How each case went, one course per seed; None if one diverged.
Courses = Mapping[Case, Sequence[Course] | None]


class _Vgg(Item):
    """Curves of VGG nets, a column of panels for each."""

    methods: ClassVar[tuple[str, ...]]
    stragglers: ClassVar[tuple[float, ...]]

    @abstractmethod
    def averages(self, preset: Preset) -> Sequence[str]:
        """The ways of averaging that are run."""

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Config]:
        """All nets, the shallow ones first."""
        return [config for configs in self._configs(preset).values() for config in configs]

    def cases(self, preset: Preset) -> list[Case]:
        """FedAvg and the others, net by net."""
        return [
            case
            for net in preset.nets
            for case in (
                Case.waiting(net),
                *(
                    Case(net, method, average, share)
                    for average in self.averages(preset)
                    for method in self.methods
                    for share in self.stragglers
                ),
            )
        ]

    def _configs(self, preset: Preset) -> dict[Case, list[Config]]:
        return {
            case: [
                preset.config(case.net, case.method, case.average, case.stragglers, seed)
                for seed in range(preset.vgg_seeds)
            ]
            for case in self.cases(preset)
        }

    def _courses(self, preset: Preset, found: Found) -> dict[Case, list[Course] | None]:
        return {
            case: curves.courses(found, configs) for case, configs in self._configs(preset).items()
        }


class VggStragglers(_Vgg):
    """Fig. [vggPrecentage]: FedAvg, and SALF with some to many stragglers."""

    name: ClassVar[str] = "fig-vgg"
    title: ClassVar[str] = "VGG nets on CIFAR-10 by share of stragglers"
    methods: ClassVar[tuple[str, ...]] = ("salf",)
    stragglers: ClassVar[tuple[float, ...]] = SHARES

    def averages(self, preset: Preset) -> Sequence[str]:
        """Both where there is the time."""
        return preset.vgg_averages

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Config]:
        """The nets for which there is the time to have many shares of stragglers."""
        return super().tasks(replace(preset, nets=preset.nets_by_share), remember)

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The curves, and whether they converge."""
        preset = replace(preset, nets=preset.nets_by_share)
        courses = self._courses(preset, found)
        shares = names.listed([names.percent(share) for share in SHARES])
        lines = {
            0.0: Line("FedAvg, no stragglers", names.colours(["fedavg"])[0], dashed=True),
            **{
                share: Line(f"SALF, {names.percent(share)} stragglers", colour)
                for share, colour in _SHADES.items()
            },
        }
        return Outcome(
            rows=curves.curve_rows(found, super().tasks(preset, remember)),
            figure=_figure(
                preset,
                courses,
                self.averages(preset),
                {case: lines[case.stragglers] for case in courses},
                "VGG nets on CIFAR-10: SALF by share of stragglers",
            ),
            description="Accuracy on held-out images over the rounds, a column of panels for each "
            f"net, with a line for FedAvg and for SALF at {shares} stragglers.",
            caption=_caption(preset),
            findings=[
                _so_far(preset, finding)
                for average in self.averages(preset)
                for finding in findings(
                    courses,
                    average,
                    preset.nets,
                    held_out_images(preset),
                    ONE_SEED if preset.vgg_seeds == 1 else "",
                )
            ],
            intro=f"{_what_was_run(preset)} SALF at {shares} stragglers beside FedAvg, which has "
            "none.",
        )


class VggTightDeadline(_Vgg):
    """Fig. [vgg90]: SALF, Drop and FedAvg at 90 % stragglers."""

    name: ClassVar[str] = "fig-vgg90"
    title: ClassVar[str] = "VGG nets on CIFAR-10 at 90 % stragglers"
    methods: ClassVar[tuple[str, ...]] = ("drop", "salf")
    stragglers: ClassVar[tuple[float, ...]] = (TIGHT,)

    def averages(self, preset: Preset) -> Sequence[str]:
        """Both: how Drop does depends on it."""
        return AVERAGES

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The curves, and how far SALF is from the other two."""
        courses = self._courses(preset, found)
        methods = ("fedavg", *self.methods)
        lines = dict(zip(methods, curves.method_lines(methods), strict=True))
        return Outcome(
            rows=curves.curve_rows(found, self.tasks(preset, remember)),
            figure=_figure(
                preset,
                courses,
                AVERAGES,
                {case: lines[case.method] for case in courses},
                f"VGG nets on CIFAR-10 at {names.percent(TIGHT)} stragglers",
            ),
            description="Accuracy on held-out images over the rounds, a column of panels for each "
            "net and a row for each way of averaging, with lines for FedAvg, Drop and SALF.",
            caption=_caption(preset),
            findings=[
                _so_far(preset, finding)
                for average in AVERAGES
                for finding in findings_at_90(
                    courses, average, preset.nets, ONE_SEED if preset.vgg_seeds == 1 else ""
                )
            ],
            intro=f"{_what_was_run(preset)} SALF and Drop with {names.percent(TIGHT)} of the users "
            "stragglers in every round, beside FedAvg, which has none.",
        )


def findings(
    courses: Courses, average: str, nets: Sequence[str], images: int, note: str
) -> list[Finding]:
    """What the paper says about SALF at 30, 50 and 70 %. `images` are those held out."""
    convention = CONVENTIONS[average]
    cases = [Case(net, "salf", average, share) for net in nets for share in SHARES]
    return [
        judge(
            f"{convention}: “SALF converges for all considered architectures and amount of "
            f"stragglers” (each seed ends above {_above_chance(images):.3f}, which is chance and "
            "three standard errors, at least half as far above chance as FedAvg of the same net, "
            f"not more than {BELOW_BEST} below its best, and with a lower training loss than it "
            "began).",
            [_converges(case, courses, images) for case in cases],
            note,
        ),
        _slower_when_deeper(courses, average, nets, SHARES, note),
        _gains_from_stragglers(courses, average, nets, note),
    ]


def findings_at_90(courses: Courses, average: str, nets: Sequence[str], note: str) -> list[Finding]:
    """What the paper says about SALF and Drop at 90 %."""
    convention = CONVENTIONS[average]
    above_drop: list[Check] = []
    near_fedavg: list[Check] = []
    for net in nets:
        salf, drop = (Case(net, method, average, TIGHT) for method in ("salf", "drop"))
        for where, of in (("over all rounds", curves.profiles), ("at the end", curves.ends)):
            ours, theirs = (Measured(str(case), of(courses.get(case))) for case in (salf, drop))
            above_drop.append(better(ours, theirs, where))
        near_fedavg.append(_approaches(courses, salf))
    return [
        judge(
            f"{convention}: SALF is “significantly better than drop-stragglers, also for various "
            "deep architectures” (over all rounds and at the end).",
            above_drop,
            note,
            why_not=_WHY_DROP[average],
        ),
        judge(
            f"{convention}: SALF is “still approaching the performance achieved with "
            f"stragglers-free full” FedAvg (within {NEAR_THE_CEILING} of it at the end, where "
            f"it is itself above {LEARNED}).",
            near_fedavg,
            note,
        ),
        _slower_when_deeper(courses, average, nets, (TIGHT,), note),
    ]


def _approaches(courses: Courses, salf: Case) -> Check:
    ceiling = Case.waiting(salf.net)
    ours, theirs = (Measured(str(c), curves.ends(courses.get(c))) for c in (salf, ceiling))
    check = as_good(ours, theirs, "at the end", margin=NEAR_THE_CEILING)
    if ours.seeds and theirs.seeds and fmean(theirs.seeds) < LEARNED:
        return Check(f"{check.what} (too early)", None)
    return check


_WHY_DROP = {
    "reached": "Averaged over the users that finished, as the equations say, Drop's steps are of "
    "full length, from a tenth of the users; on i.i.d. data these stand for all.",
    "all": "",
}


def held_out_images(preset: Preset) -> int:
    """How many images of CIFAR-10 the curves are measured on."""
    return round(TRAINING_IMAGES * preset.configs[preset.nets[0]].validation)


def _above_chance(images: int) -> float:
    return CHANCE + 3 * sqrt(CHANCE * (1 - CHANCE) / images)


def _converges(case: Case, courses: Courses, images: int) -> Check:
    seeds, ceiling = courses.get(case), courses.get(Case.waiting(case.net))
    if seeds is None:
        return Check(f"{case}: training diverged", False)
    told, passed = [], True
    for i, course in enumerate(seeds):
        tenth = max(1, len(course.losses) // 10)
        first, last = fmean(course.losses[:tenth]), fmean(course.losses[-tenth:])
        beside = "" if ceiling is None else f" (FedAvg {ceiling[i].end:.3f})"
        told.append(
            f"{course.end:.3f} at the end{beside}, {course.best:.3f} at best, training loss from "
            f"{first:.2f} to {last:.2f}"
        )
        settled = course.end >= course.best - BELOW_BEST
        passed &= course.end > _above_chance(images) and settled and last < first
        if ceiling is not None:
            passed &= course.end - CHANCE >= HALF_WAY * (ceiling[i].end - CHANCE)
    if passed and ceiling is None:
        return Check(f"{Case.waiting(case.net)}: training diverged", None)
    return Check(f"{case}: {' and '.join(told)}", passed)


def _slower_when_deeper(
    courses: Courses, average: str, nets: Sequence[str], shares: Sequence[float], note: str
) -> Finding:
    """Whether SALF's mean accuracy over the rounds falls with depth, and whether FedAvg's does."""

    def score(case: Case) -> Measured:
        return Measured(str(case), curves.profiles(courses.get(case)))

    def slower(cases: Mapping[str, Case]) -> list[Check]:
        return [better(score(cases[a]), score(cases[b])) for a, b in pairwise(nets)]

    waiting = {net: Case.waiting(net) for net in nets}
    by_share = {s: {net: Case(net, "salf", average, s) for net in nets} for s in shares}
    told = []
    if all(score(case).seeds for case in waiting.values()):
        verdict = judge("", slower(waiting)).verdict.value
        listed = ", ".join(str(score(case)) for case in waiting.values())
        told.append(f"Of FedAvg, without any deadline, the same {verdict}: {listed}.")
        costs = {
            net: [
                paired(top, ours)
                for cases in by_share.values()
                if (ours := score(cases[net]).seeds) and (top := score(waiting[net]).seeds)
            ]
            for net in nets
        }
        if all(costs.values()):
            listed = ", ".join(
                f"{_net(net)} {interval([fmean(seed) for seed in zip(*cost, strict=True)])}"
                for net, cost in costs.items()
            )
            told.append(f"What the stragglers cost, FedAvg less SALF: {listed}.")
    checks = [check for cases in by_share.values() for check in slower(cases)]
    return judge(
        f"{CONVENTIONS[average]}: “low-latency FL converges slower with deeper DNNs” (SALF's mean "
        f"accuracy over all rounds at {_shares(shares)} stragglers falls significantly from each "
        "net to the next deeper one).",
        checks,
        " ".join(filter(None, [*told, note])),
        untested="there is one net only in this preset",
    )


def _gains_from_stragglers(
    courses: Courses, average: str, nets: Sequence[str], note: str
) -> Finding:
    few, *more = SHARES
    cases = {share: Case("vgg19", "salf", average, share) for share in SHARES}
    score = {
        share: Measured(str(case), curves.profiles(courses.get(case)))
        for share, case in cases.items()
    }
    return judge(
        f"{CONVENTIONS[average]}: VGG-19: “SALF with 70 % or 50 % stragglers yields an improved "
        "learning procedure compared with 30 %” (a significantly higher mean accuracy over all "
        "rounds).",
        [better(score[share], score[few]) for share in (more if "vgg19" in nets else [])],
        note,
        untested="VGG-19 is not run in this preset",
    )


def _shares(shares: Sequence[float]) -> str:
    return names.listed([names.percent(share) for share in shares])


def _net(key: str) -> str:
    return f"VGG-{key.removeprefix('vgg')}"


def _rounds(preset: Preset) -> int:
    return max(preset.configs[net].rounds for net in preset.nets)


def _so_far(preset: Preset, finding: Finding) -> Finding:
    """The early part of the curves cannot make a claim about all of them hold, or fail."""
    rounds = _rounds(preset)
    if rounds >= PAPER_ROUNDS:
        return finding
    return of_a_part(
        finding, f"So far: these are {rounds:,} of the paper's {PAPER_ROUNDS:,} rounds."
    )


def _what_was_run(preset: Preset) -> str:
    """Which part of the paper's experiment this is."""
    rounds = f"{_rounds(preset):,} rounds"
    if _rounds(preset) < PAPER_ROUNDS:
        rounds = f"{_rounds(preset):,} of the paper's {PAPER_ROUNDS:,} rounds"
    nets = names.listed([_net(net) for net in preset.nets])
    if missing := [_net(net) for net in PAPER.nets if net not in preset.nets]:
        nets += f" ({names.listed(missing)} not run)"
    return f"{nets}, {rounds}, {over_seeds(preset.vgg_seeds)}."


def _caption(preset: Preset) -> str:
    held = f"{held_out_images(preset):,} training images held back"
    return f"Accuracy on {held}. {_what_was_run(preset)}"


def _figure(
    preset: Preset,
    courses: Courses,
    averages: Sequence[str],
    lines: Mapping[Case, Line],
    title: str,
) -> Spec:
    several = len(averages) > 1
    points = []
    for case, seeds in courses.items():
        # FedAvg is in the panels of both ways of averaging.
        for average in [case.average] if case.average else averages:
            for t, accuracy in curves.mean_curve(seeds) if seeds is not None else []:
                row = HEADINGS[average] if several else ""
                points.append(Point(lines[case].name, t, accuracy, _net(case.net), row))
    heading = [_what_was_run(preset), f"{preset.configs[preset.nets[0]].users} users"]
    if not several:
        heading[-1] += f", {names.AVERAGES[averages[0]]}"
    heading[-1] += f"; preset {preset.name}."
    return curves.chart(
        points,
        list(dict.fromkeys(lines.values())),
        title=title,
        subtitle=heading,
        x="Round",
        y="Accuracy on held-out data",
    )
