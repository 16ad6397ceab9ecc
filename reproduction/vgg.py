"""VGG nets on CIFAR-10: does SALF converge, what does depth do, and how bad is 90 %."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from reproduction import curves
from reproduction.comparisons import HEADINGS, Scores, as_good, better, one_seed
from reproduction.curves import Course
from reproduction.item import Found, Outcome, Trained
from reproduction.sizes import AVERAGES, PAPER, Size
from reproduction.statistics import paired
from reproduction.texts import about, finding, text
from reproduction.verdicts import Check, Finding, Verdict, judge, noted, of_a_part
from salf.common.figures import Line
from salf.common.intervals import interval, over_seeds
from salf.report import names
from salf.runs.config import Config
from salf.runs.presets import PRESETS as PAPER_CONFIGS

PAPER_ROUNDS = PAPER_CONFIGS["cifar-vgg11"].rounds
TIGHT = 0.9
SHARES = (0.3, 0.5, 0.7)
TRAINING_IMAGES = 50_000
CHANCE = 0.1  # ten classes of equal size
HALF_WAY = 0.5  # a training that converges gets at least this far from chance to FedAvg's end
BELOW_BEST = 0.05  # a training that ends further below its best accuracy has not settled
NEAR_THE_CEILING = 0.05  # what counts as approaching FedAvg
LEARNED = 0.5  # being near FedAvg says nothing before FedAvg itself is there

# Light to dark, around SALF's own colour.
_SHADES = {0.3: "#F0A56B", 0.5: "#D55E00", 0.7: "#7A2E00"}


class NetCase(NamedTuple):
    """A net trained by a method. FedAvg, which waits, has one case a net."""

    net: str
    method: str
    average: str
    stragglers: float

    @classmethod
    def waiting(cls, net: str) -> "NetCase":
        """The ceiling."""
        return cls(net, "fedavg", "", 0.0)

    def __str__(self) -> str:
        share = "" if names.waits(self.method) else f" ({names.percent(self.stragglers)})"
        return f"{_net(self.net)} {names.method(self.method)}{share}"


# How each case went, one course per seed; None if one diverged.
NetCourses = Mapping[NetCase, Sequence[Course] | None]


@dataclass(frozen=True)
class Vgg(Trained):
    """Curves of VGG nets, a column of panels for each."""

    name: str
    title: str
    methods: Sequence[str]
    stragglers: Sequence[float]
    nets: Callable[[Size], Sequence[str]]
    averages: Callable[[Size], Sequence[str]]
    claims: Callable[[NetCourses, str, Sequence[str], int], list[Finding]]

    def configs(self, size: Size) -> Mapping[NetCase, Sequence[Config]]:
        """FedAvg and the others, net by net."""
        cases = []
        for net in self.nets(size):
            cases.append(NetCase.waiting(net))
            cases += [
                NetCase(net, method, average, share)
                for average in self.averages(size)
                for method in self.methods
                for share in self.stragglers
            ]
        return {case: size.seeded(*case) for case in cases}

    def outcome(self, size: Size, found: Found) -> Outcome:
        """The curves, and what the paper says about them."""
        configs, nets, averages = self.configs(size), self.nets(size), self.averages(size)
        courses = {case: curves.courses(found, runs) for case, runs in configs.items()}
        several, images = len(averages) > 1, held_out_images(size)
        points = [
            point
            for average in averages
            for case, seeds in courses.items()
            # FedAvg is in the panels of both ways of averaging.
            if case.average in (average, "")
            for panel in [_net(case.net) + f"\n{HEADINGS[average]}" * several]
            for point in curves.points(self._line(case).name, seeds, panel)
        ]
        run = _what_was_run(size, nets)
        averaged = "" if several else f", {names.average(averages[0])}"
        users = f"{size.configs[nets[0]].users} users{averaged}; size {size.name}."
        lines = list(dict.fromkeys(map(self._line, courses)))
        told = {
            "run": run,
            "methods": names.listed([names.method(method) for method in self.methods]),
            "shares": _shares(self.stragglers),
            "rows": " and a row for each way of averaging" * several,
            "lines": names.listed([line.name for line in lines]),
            "images": images,
        }
        return Outcome(
            rows=curves.curve_rows(found, [run for runs in configs.values() for run in runs]),
            figure=curves.figure(
                points, lines, wrap=len(nets), title=self.title, subtitle=[run, users]
            ),
            findings=[
                _so_far(size, noted(one, one_seed(size.vgg_seeds)), _has_learned(courses, nets))
                for average in averages
                for one in self.claims(courses, average, nets, images)
            ],
            **about("vgg", **told),
        )

    def _line(self, case: NetCase) -> Line:
        """A line by method, or by ratio of stragglers where there are several."""
        (line,) = names.lines([case.method])
        if len(self.stragglers) == 1:
            return line
        share = names.percent(case.stragglers) if case.stragglers else "no"
        colour = _SHADES.get(case.stragglers, line.colour)
        return replace(line, name=f"{line.name}, {share} stragglers", colour=colour, bold=False)


def findings(courses: NetCourses, average: str, nets: Sequence[str], images: int) -> list[Finding]:
    """The paper's claims about SALF at 30, 50 and 70 %. `images` are those held out."""
    cases = [NetCase(net, "salf", average, share) for net in nets for share in SHARES]
    score = {share: _profile(courses, NetCase("vgg19", "salf", average, share)) for share in SHARES}
    few, *more = SHARES
    converges = [_converges(case, courses, images) for case in cases]
    limits = {"above_chance": _above_chance(images), "below_best": BELOW_BEST}
    gains = [better(score[share], score[few]) for share in (more if "vgg19" in nets else [])]
    return [
        finding("vgg", "converges", converges, average, **limits),
        _slower_when_deeper(courses, average, nets, SHARES),
        finding("vgg", "gains", gains, average),
    ]


def findings_at_90(
    courses: NetCourses, average: str, nets: Sequence[str], images: int
) -> list[Finding]:
    """The paper's claims about SALF and Drop at 90 %."""
    above_drop: list[Check] = []
    near_fedavg: list[Check] = []
    for net in nets:
        salf, drop = (NetCase(net, method, average, TIGHT) for method in ("salf", "drop"))
        for where, of in (("over all rounds", curves.profiles), ("at the end", curves.ends)):
            ours, theirs = (Scores(str(case), of(courses.get(case))) for case in (salf, drop))
            above_drop.append(better(ours, theirs, where))
        near_fedavg.append(_approaches(courses, salf))
    limits = {"near": NEAR_THE_CEILING, "learned": LEARNED}
    return [
        finding("vgg", "above_drop", above_drop, average),
        finding("vgg", "near_fedavg", near_fedavg, average, **limits),
        _slower_when_deeper(courses, average, nets, (TIGHT,)),
    ]


BY_SHARE = Vgg(  # Fig. [vggPrecentage]
    "fig-vgg",
    "VGG nets on CIFAR-10 by share of stragglers",
    methods=("salf",),
    stragglers=SHARES,
    nets=lambda size: size.nets_by_share,
    averages=lambda size: size.vgg_averages,
    claims=findings,
)
AT_90 = Vgg(  # Fig. [vgg90]
    "fig-vgg90",
    "VGG nets on CIFAR-10 at 90 % stragglers",
    methods=("drop", "salf"),
    stragglers=(TIGHT,),
    nets=lambda size: size.nets,
    averages=lambda size: AVERAGES,
    claims=findings_at_90,
)


def held_out_images(size: Size) -> int:
    """How many images of CIFAR-10 the curves are measured on."""
    return round(TRAINING_IMAGES * size.configs[size.nets[0]].validation)


def _approaches(courses: NetCourses, salf: NetCase) -> Check:
    ceiling = NetCase.waiting(salf.net)
    ours, theirs = (Scores(str(c), curves.ends(courses.get(c))) for c in (salf, ceiling))
    check = as_good(ours, theirs, "at the end", margin=NEAR_THE_CEILING)
    if ours.seeds and theirs.seeds and fmean(theirs.seeds) < LEARNED:
        return Check(f"{check.what} (too early)", None)
    return check


def _above_chance(images: int) -> float:
    return CHANCE + 3 * sqrt(CHANCE * (1 - CHANCE) / images)


def _converges(case: NetCase, courses: NetCourses, images: int) -> Check:
    seeds, ceiling = courses.get(case), courses.get(NetCase.waiting(case.net))
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
        return Check(f"{NetCase.waiting(case.net)}: training diverged", None)
    return Check(f"{case}: {' and '.join(told)}", passed)


def _profile(courses: NetCourses, case: NetCase) -> Scores:
    return Scores(str(case), curves.profiles(courses.get(case)))


def _slower_when_deeper(
    courses: NetCourses, average: str, nets: Sequence[str], shares: Sequence[float]
) -> Finding:
    """Whether SALF's mean accuracy over the rounds falls with depth, and whether FedAvg's does."""
    waiting = {net: _profile(courses, NetCase.waiting(net)) for net in nets}
    salf = [
        {net: _profile(courses, NetCase(net, "salf", average, share)) for net in nets}
        for share in shares
    ]

    def slower(scores: Mapping[str, Scores]) -> list[Check]:
        return [better(scores[a], scores[b]) for a, b in pairwise(nets)]

    told = ""
    if all(score.seeds for score in waiting.values()):
        verdict = judge("", slower(waiting)).verdict
        said = "is inconclusive" if verdict is Verdict.UNDECIDED else verdict.value
        listed = ", ".join(map(str, waiting.values()))
        told = f"For FedAvg, without any deadline, the same {said}: {listed}."
        costs = {
            net: [
                paired(top.seeds, ours)
                for ours in [scores[net].seeds for scores in salf]
                if top.seeds and ours
            ]
            for net, top in waiting.items()
        }
        if all(costs.values()):
            means = {net: Scores.mean("", cost).seeds or [] for net, cost in costs.items()}
            listed = ", ".join(f"{_net(net)} {interval(mean)}" for net, mean in means.items())
            told += f" What the stragglers cost, FedAvg less SALF: {listed}."
    checks = [check for scores in salf for check in slower(scores)]
    return finding("vgg", "slower", checks, average, shares=_shares(shares), told=told)


def _shares(shares: Sequence[float]) -> str:
    return names.listed([names.percent(share) for share in shares])


def _net(key: str) -> str:
    return f"VGG-{key.removeprefix('vgg')}"


def _has_learned(courses: NetCourses, nets: Sequence[str]) -> bool:
    """Whether FedAvg got somewhere with every net, so that what was run can tell something."""
    ends = [curves.ends(courses.get(NetCase.waiting(net))) for net in nets]
    return all(end is not None and fmean(end) >= LEARNED for end in ends)


def _so_far(size: Size, found: Finding, learned: bool) -> Finding:
    """The first part of the rounds cannot make a claim about all of them hold.

    It can make one fail, once FedAvg has learned: then the verdict is on these rounds, and says so.
    """
    rounds = size.configs[size.nets[0]].rounds
    if rounds >= PAPER_ROUNDS:
        return found
    note = text("vgg", "so_far", rounds=rounds, all=PAPER_ROUNDS)
    fails = learned and found.verdict is Verdict.FAILS
    return noted(found, note) if fails else of_a_part(found, note)


def _what_was_run(size: Size, nets: Sequence[str]) -> str:
    """Which part of the paper's experiment this is."""
    rounds = size.configs[nets[0]].rounds
    of_all = f" of the paper's {PAPER_ROUNDS:,}" * (rounds < PAPER_ROUNDS)
    listed = names.listed([_net(net) for net in nets])
    if missing := [_net(net) for net in PAPER.nets if net not in nets]:
        listed += f" ({names.listed(missing)} not run)"
    return f"{listed}, {rounds:,}{of_all} rounds, {over_seeds(size.vgg_seeds)}."
