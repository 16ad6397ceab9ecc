"""Many runs side by side: every combination of what is compared, what came out, and when."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from salf.common.errors import SalfError, unknown
from salf.common.files import folder_name
from salf.methods import Method, asks, find, method
from salf.runs.config import Config
from salf.runs.run import Result
from salf.runs.settings import key
from salf.runs.training import SLOWEST, History

# Of a comparison's folder: the runs, and the list of their cases, from which it is followed.
RUNS, CASES = "runs", "runs.json"
SHARE = 0.95  # of waiting FedAvg's accuracy at the end: the target, unless one is given


@dataclass(frozen=True)
class Case:
    """One cell of a comparison: everything but the seed."""

    method: str
    average: str
    split: str
    stragglers: float
    batches: str = "equal"
    more: tuple[tuple[str, Any], ...] = ()  # other settings with several values, by name

    @property
    def average_used(self) -> str:
        """The average of its runs: "reached" where the method leaves no choice."""
        choice = "average" in _fields(self.method) and not asks(self.method).waits
        return self.average if choice else "reached"

    def made(self, given: str | Method, options: Mapping[str, Any]) -> Method:
        """Its method, given by name with options or as an object."""
        if isinstance(given, str):
            return method(given.partition("+")[0], average=self.average_used, **options)
        averaged = {"average": self.average_used} if "average" in _fields(self.method) else {}
        return replace(given, **averaged)

    def settings(self, method: Method, fleet: bool) -> dict[str, Any]:
        """The settings of its runs with this method."""
        found = {**dict(self.more), "average": self.average_used, "batches": self.batches}
        if not fleet:  # whose devices say who is slow
            # A method that waits for everybody gives one result whatever the ratio is.
            found["stragglers"] = 0.0 if method.asks.waits else self.stragglers
        return found

    def label(self, seed: int, fleet: str) -> str:
        """A name for its run with a seed, fit for a folder."""
        sized = () if self.batches in ("auto", "equal") else (self.batches,)
        ratio = 0.0 if asks(self.method).waits else self.stragglers
        more = (f"{key(name)}={value}" for name, value in self.more)
        where = (self.average_used, self.split, fleet or f"{ratio:g}", *more)
        return folder_name(self.method, *sized, *where, seed)


@dataclass(frozen=True)
class Clocked:
    """What a run took by its clock."""

    rounds: int
    seconds: float  # simulated, at the end of the last round
    target: float | None  # accuracy on held-out data; None if there is none to reach
    to_target: float | None  # seconds; None if the target was not reached
    waited: float  # seconds that users were done and a round was not, summed over users
    lost_work: float  # the share of all multiply-adds that is in no update that counts
    lost_bytes: float
    slowest: float | None  # the accuracy on the data of the slowest tenth of the users

    @classmethod
    def of(cls, history: History, target: float | None) -> "Clocked":
        """The times of a run on a fleet."""
        rows = history.rows
        work, sent = sum(row.work for row in rows), sum(row.bytes for row in rows)
        return cls(
            len(rows),
            rows[-1].clock or 0.0,
            target,
            None if target is None else seconds_to(history.timed_curve, target),
            sum(row.waited for row in rows),
            sum(row.wasted_work for row in rows) / work if work else 0.0,
            sum(row.wasted_bytes for row in rows) / sent if sent else 0.0,
            history.test.get(SLOWEST),
        )

    def record(self) -> dict[str, float | None]:
        """The columns of results.csv."""
        return {
            "rounds": self.rounds,
            "simulated_seconds": self.seconds,
            "target": self.target,
            "seconds_to_target": self.to_target,
            "seconds_waited": self.waited,
            "work_lost": self.lost_work,
            "bytes_lost": self.lost_bytes,
        }


def seconds_to(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """The time of the first evaluation at or above the target; None if there is none."""
    return next((seconds for seconds, accuracy in curve if accuracy >= target), None)


@dataclass(frozen=True)
class Comparison:
    """Finished runs, grouped by case; each case has one result per seed.

    `failures` names the runs that diverged, each with the reason; they have no result. `goal` is
    the accuracy to reach by the simulated clock; by default 95 % of waiting FedAvg's. `interrupted`
    says that there were more runs to come.
    """

    base: Config
    results: dict[Case, list[Result]]
    failures: dict[str, str] = field(default_factory=dict)
    goal: float | None = None
    interrupted: bool = False

    def waiting(self, case: Case) -> Case | None:
        """The case of a method that waits for all users to compare this one with."""
        place = (case.split, case.average, case.more)
        others = [
            other
            for other in self.results
            if asks(other.method).waits and (other.split, other.average, other.more) == place
        ]
        return min(others, key=lambda other: other.batches != "equal", default=None)

    def target(self, case: Case, seed: int) -> float | None:
        """The accuracy on held-out data that runs of this case and seed are to reach."""
        if self.goal is not None or (waiting := self.waiting(case)) is None:
            return self.goal
        curves = [run.history.curve for run in self.results[waiting] if run.config.seed == seed]
        return SHARE * curves[0][-1][1] if curves and curves[0] else None

    def clocked(self, case: Case) -> list[Clocked]:
        """What the runs of a case took by the simulated clock, seed by seed."""
        return [
            Clocked.of(run.history, self.target(case, run.config.seed))
            for run in self.results[case]
        ]

    def records(self) -> list[dict[str, Any]]:
        """One entry per case and seed, as in results.csv."""
        return [
            {
                "method": case.method,
                **dict(case.more),
                **self._condition(case),
                **{key: result.summary[key] for key in ("seed", "test_accuracy", "best_accuracy")},
                **{f"test_{n}": v for n, v in result.history.test.items() if n != "accuracy"},
                **(clocked.record() if self.base.fleet else {}),
                "split": case.split,
                "average": case.average,
            }
            for case, results in self.results.items()
            for result, clocked in zip(results, self.clocked(case), strict=True)
        ]

    def _condition(self, case: Case) -> dict[str, Any]:
        if not self.base.fleet:
            return {"stragglers": case.stragglers}
        here = {"fleet": self.base.fleet, "deadline": self.base.deadline} | dict(case.more)
        deadline = None if asks(case.method).waits else here["deadline"]
        return {"batches": case.batches, "fleet": here["fleet"], "deadline": deadline}


def check_target(target: float | None) -> None:
    """Refuse a target that is no accuracy."""
    if target is not None and not 0 < target <= 1:
        raise SalfError(f"the target is an accuracy above 0 and at most 1, not {target}.")


def check_options(options: Iterable[str], wanted: Iterable[Case]) -> None:
    """Refuse an option that none of the methods has."""
    known = {name for case in wanted for name in options_of(case.method)}
    for name in options:
        if key(name) not in known:
            raise unknown("option of these methods", name, known)


def options_of(method: str) -> set[str]:
    """The options that a method has."""
    return {key(name) for name in _fields(method)} - {"average"}


def _fields(method: str) -> list[str]:
    return [each.name for each in fields(find(method))]
