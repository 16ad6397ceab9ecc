"""Candidates raced against each other: short runs of all, longer ones of those that lead."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from salf.common.errors import NoRoundInTime
from salf.common.files import folder_name
from salf.methods import asks
from salf.runs.compare import seconds_to
from salf.runs.config import Config
from salf.runs.folder import RunFolder
from salf.runs.pool import Finished, Job
from salf.runs.training import History, OnPart

Curve = Sequence[tuple[float, float]]
SMOOTHED = 3  # evaluations up to the end of a run whose mean is its accuracy


@dataclass(frozen=True)
class Candidate:
    """Settings that a plan may choose; those that are None are the config's."""

    method: str
    deadline: float | str | None = None
    batches: str = "equal"
    local_steps: int = 1
    compress: str = ""
    lr: float | None = None
    batch_size: int | None = None
    note: str = field(default="", compare=False)  # where the deadline comes from

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that it has, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def family(self) -> tuple[str, int]:
        """Its method and local steps: the best of each family is never given up."""
        return self.method, self.local_steps

    @property
    def waits(self) -> bool:
        return asks(self.method).waits

    def label(self, seed: int) -> str:
        """A name for its run with a seed, fit for a folder."""
        T = self.deadline
        told = {**self.settings, "deadline": Path(T).stem if isinstance(T, str) else T}
        return folder_name(*(value for value in told.values() if value), seed)


@dataclass
class Race:
    """Runs of candidates, each in a folder in which it continues when it gets more time.

    `job` makes the job of settings in a folder; `run` does jobs, and says what they are.
    """

    job: Callable[[Mapping[str, Any], Path], Job]
    run: Callable[[str, Mapping[str, Job]], Finished]
    folder: Path
    target: float | None
    interval: float  # simulated seconds between evaluations
    histories: dict[tuple[Candidate, int], History] = field(default_factory=dict)

    def advance(
        self, candidates: Iterable[Candidate], seconds: float, seeds: Iterable[int] = (0,)
    ) -> None:
        """Run these candidates up to a simulated time."""
        jobs, keys = {}, {}
        for each, seed in ((each, seed) for each in dict.fromkeys(candidates) for seed in seeds):
            name = each.label(seed)
            if (found := _kept(self.folder / name, seconds)) is not None:
                self.histories[each, seed] = found
                continue
            # A run that was interrupted on its way to a later time cannot end before it.
            end = max(seconds, _asked(self.folder / name))
            clock = {"seconds": end, "eval_seconds": self.interval, "seed": seed}
            job = self.job({**each.settings, **clock}, self.folder / name)
            jobs[name], keys[name] = replace(job, do=partial(in_time, job.do)), (each, seed)
        if jobs:
            ended = self.run(f"{len(jobs)} runs to {seconds:.3g} s", jobs).results
            known = {keys[name]: result for name, result in ended.items() if result is not None}
            self.histories |= {key: result.history for key, result in known.items()}

    def halve(self, candidates: Sequence[Candidate], horizons: Sequence[float]) -> list[Candidate]:
        """The best first; at each horizon but the last, the slower half gives up."""
        left = list(dict.fromkeys(candidates))
        for seconds in horizons:
            self.advance(left, seconds)
            ranked = self.ranked(left, seconds)
            half = ranked[: -(-len(ranked) // 2)] if seconds < horizons[-1] else ranked
            left = list(dict.fromkeys([*half, *leaders(ranked)]))
        return left

    def ranked(
        self, candidates: Iterable[Candidate], seconds: float, seeds: Sequence[int] = (0,)
    ) -> list[Candidate]:
        """By the time to the target, if there is one, and then by the accuracy."""

        def key(each: Candidate) -> tuple[float, float]:
            times = [self.to_target(each, seed, self.target, seconds) for seed in seeds]
            accuracies = [self.accuracy(each, seed, seconds) or 0.0 for seed in seeds]
            return fmean(inf if time is None else time for time in times), -fmean(accuracies)

        return sorted(dict.fromkeys(candidates), key=key)

    def curve(self, each: Candidate, seed: int, seconds: float = inf) -> Curve:
        """(simulated seconds, held-out accuracy) up to a time."""
        history = self.histories.get((each, seed))
        return [point for point in history.timed_curve if point[0] <= seconds] if history else []

    def accuracy(self, each: Candidate, seed: int, seconds: float = inf) -> float | None:
        """The held-out accuracy at a time: the mean of a few evaluations before it."""
        last = [accuracy for _, accuracy in self.curve(each, seed, seconds)[-SMOOTHED:]]
        return fmean(last) if last else None

    def to_target(
        self, each: Candidate, seed: int, target: float | None, seconds: float = inf
    ) -> float | None:
        """The seconds to a target; None if it is not reached."""
        return None if target is None else crossing(self.curve(each, seed, seconds), target)


def crossing(curve: Curve, target: float) -> float | None:
    """When a curve first is at the target, on the line between two evaluations."""
    if (end := seconds_to(curve, target)) is None:
        return None
    place = [seconds for seconds, _ in curve].index(end)
    (start, low), (_, high) = curve[max(place - 1, 0)], curve[place]
    return start + (end - start) * (target - low) / (high - low) if place else end


def leaders(ranked: Iterable[Candidate]) -> list[Candidate]:
    """The first of each family."""
    found: dict[tuple[str, int], Candidate] = {}
    for each in ranked:
        found.setdefault(each.family, each)
    return list(found.values())


def _asked(folder: Path) -> float:
    """The simulated time to which the run in a folder was to come; 0 if there is none."""
    there = RunFolder(folder).config()
    return (there.seconds or 0.0) if isinstance(there, Config) else 0.0


def _kept(folder: Path, seconds: float) -> History | None:
    """The history of a run that has come so far, from its folder."""
    run = RunFolder(folder)
    summary, there = run.summary(), run.config()
    far = isinstance(there, Config) and (there.seconds or 0.0) >= seconds
    return run.history(summary) if far and summary is not None else None


def in_time(do: Callable[[OnPart], Any], progress: OnPart) -> Any:
    """What a run gives; nothing if not even one of its rounds ends in time."""
    try:
        return do(progress)
    except NoRoundInTime:
        return None
