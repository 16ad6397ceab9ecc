"""A federation that trains, one row of metrics after each round, and what that leaves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from time import perf_counter
from typing import Any

from torch import nn

from salf.common.bars import Bar
from salf.common.errors import SalfError
from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.common.notebook import frame
from salf.common.pictures import SVG, svg
from salf.common.process import kept_memory
from salf.core.rows import Row, columns, with_metrics
from salf.data import Samples
from salf.engines import RowLoss
from salf.problem import Predictor, Problem, evaluate
from salf.simulation import ROUNDING, Simulation

BACKDOOR = "backdoor_success"  # the accuracy that attackers with a backdoor want
SLOWEST = "slowest_tenth_accuracy"  # what the accuracy on their data is called

# Says how much of a job, in [0, 1], is done; raises Stopped when it is to end.
OnPart = Callable[[float], None]
# Called after each round with its row and the model; may raise StopTraining.
OnRound = Callable[[Row, nn.Module], None]


class StopTraining(Exception):
    """Raise this in `on_round` to end a run after this round and keep its results."""


def ends_run(on_round: OnRound | None, row: Row, model: nn.Module) -> bool:
    """Call `on_round`, if there is one; whether it ends the run after this round."""
    try:
        if on_round is not None:
            on_round(row, model)
    except StopTraining:
        return True
    return False


@dataclass
class Evaluation:
    """When the model of a run is evaluated: every so many rounds, or seconds of a simulated clock.

    It is measured on what the problem holds out, at the end also on the data of the `slowest` users
    and on what attackers want (`backdoor`). `by`, a problem or a faster engine, computes outputs.
    """

    problem: Problem
    every: int
    seconds: float = 0.0  # instead of rounds
    slowest: Samples | None = None
    backdoor: Samples | None = None
    by: Predictor | None = None

    def measured(self, row: Row, rounds: int, before: float | None = None) -> Row:
        """The row of a round that was just run, and began at a time, with its metrics if due."""
        due = self.is_due(row, before) or row.round == rounds
        return with_metrics(row, self.of(self.problem.validation) if due else {})

    def is_due(self, row: Row, before: float | None = None) -> bool:
        """Whether the model is always evaluated after this round, which began at time `before`."""
        if self.seconds and before is not None and row.clock is not None:
            # How many are due up to each time, however the sum of times was rounded.
            begun, now = (int(at * (1 + ROUNDING) // self.seconds) for at in (before, row.clock))
            return now > begun
        return row.round % self.every == 0

    def tested(self) -> dict[str, float]:
        """The metrics on the test data."""
        found = self.of(self.problem.test)
        for name, samples in ((SLOWEST, self.slowest), (BACKDOOR, self.backdoor)):
            if found and "accuracy" in (own := self.of(samples)):
                found[name] = own["accuracy"]
        return found

    def of(self, samples: Samples | None) -> dict[str, float]:
        """The metrics of the model as it is now."""
        if samples is None:
            return {}
        return evaluate(self.by or self.problem, samples, self.problem.metrics)


@dataclass(frozen=True)
class History:
    """The result of a training run: a row per round, final metrics, and how it was run."""

    rows: tuple[Row, ...] = field(repr=False)
    test: Mapping[str, float]  # by the name of the metric, on the test data
    engine: str = ""
    why: str = ""  # this engine
    stopped: bool = False  # by `on_round`, before all rounds were run
    loss: str = "one value per row"  # or "one value per user": what the loss returns

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy at the end on the test data, if labels are classes."""
        return self.test.get("accuracy")

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy on held-out data over the rounds."""
        return max((row.accuracy for row in self.rows if row.accuracy is not None), default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) wherever it was measured."""
        return [(row.round, row.accuracy) for row in self.rows if row.accuracy is not None]

    @property
    def timed_curve(self) -> list[tuple[float, float]]:
        """(simulated seconds, accuracy) wherever it was measured; empty without a fleet."""
        both = ((row.clock, row.accuracy) for row in self.rows)
        return [(at, found) for at, found in both if at is not None and found is not None]

    def curve_of(self, metric: str) -> list[tuple[int, float]]:
        """(round, value) of `loss` on held-out data, or of a metric of your own."""
        return [(row.round, row.metrics[metric]) for row in self.rows if metric in row.metrics]

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def to_pandas(self) -> Any:
        """A data frame with a row per round, with the columns of metrics.csv."""
        return frame(columns(self.rows))

    def plot(self, metric: str = "accuracy") -> SVG:
        """A picture of the accuracy, or another metric, over rounds or simulated seconds."""
        points = [
            Point(metric, row.clock or row.round, value)
            for row in self.rows
            if (value := {"accuracy": row.accuracy, **row.metrics}.get(metric)) is not None
        ]
        if not points:
            raise SalfError(f"{metric!r} was not measured: there is nothing to plot.")
        over = Axis("Round" if self.rows[-1].clock is None else "Simulated seconds")
        return svg(Figure([Lines(points, [Line(metric, "#0072B2")], over, Axis(metric))]))

    def _repr_html_(self) -> str:
        numbers = {"best accuracy": self.best_accuracy}
        numbers |= {f"test {name}": value for name, value in self.test.items()}
        found = {name: f"{each:.4f}" for name, each in numbers.items() if each is not None}
        found = {"rounds": str(len(self.rows)), **found, "engine": self.engine}
        cells = (f"<tr><th>{escape(name)}</th><td>{found[name]}</td></tr>" for name in found)
        return f"{self.plot() if self.curve else ''}<table>{''.join(cells)}</table>"


@dataclass
class Training:
    """A simulation, and when it is evaluated."""

    simulation: Simulation
    evaluation: Evaluation

    def run(
        self,
        rounds: int,
        seconds: float | None = None,
        on_round: OnRound | None = None,
        rows: list[Row] | None = None,
    ) -> History:
        """Train up to round `rounds` (0 for no limit), as long as the simulated time allows.

        `rows`, those of the rounds so far, get a row for each round before `on_round` is called,
        which may end the run.
        """
        if seconds is not None and self.simulation.clock is None:
            raise SalfError("seconds needs a clock, which this world does not have: use rounds.")
        rows, stopped = [] if rows is None else rows, False
        with kept_memory():
            while not stopped and (not rounds or self.simulation.t < rounds):
                start, before = perf_counter(), self.simulation.clock
                row = self.simulation.step_until(seconds)
                if row is None:
                    break
                row = self.evaluation.measured(row, rounds, before)
                rows.append(replace(row, seconds=perf_counter() - start))
                stopped = ends_run(on_round, rows[-1], self.simulation.model)
            return self.history(rows, stopped)

    def history(self, rows: Sequence[Row], stopped: bool) -> History:
        """The history of a run of which these are all rounds."""
        engine, tested = self.simulation.engine, self.evaluation.tested()
        loss = f"one value per {'row' if isinstance(engine.loss, RowLoss) else 'user'}"
        return History(tuple(rows), tested, engine.name, engine.why, stopped, loss)


def part_done(row: Row, rounds: int, seconds: float | None) -> float:
    """How much of a run is done after this round, if it ends after its rounds or its seconds."""
    by_clock = (row.clock or 0.0) / seconds if seconds else 0.0
    return max(row.round / rounds if rounds else 0.0, by_clock)


def counted(
    rounds: int, seconds: float | None, progress: OnPart, on_round: OnRound | None = None
) -> OnRound:
    """Say after each round how much of a run is done, then call `on_round`."""

    def after(row: Row, model: nn.Module) -> None:
        progress(part_done(row, rounds, seconds))
        if on_round is not None:
            on_round(row, model)

    return after


@contextmanager
def watched(
    what: str, rounds: int, seconds: float | None, on_round: OnRound | None = None
) -> Iterator[OnRound | None]:
    """Show a bar with the latest accuracy while a run lasts; gives it its `on_round`."""
    total, accuracy = seconds or rounds, ""
    # Simulated seconds are no whole numbers: they are shown in percent.
    with Bar(what, total, counted=seconds is None) as bar:

        def shown(row: Row, model: nn.Module) -> None:
            nonlocal accuracy
            if row.accuracy is not None:
                accuracy = f"accuracy {row.accuracy:.4f}"
            clock = "" if row.clock is None else f"{row.clock:,.4g} s simulated "
            bar.update(total * part_done(row, rounds, seconds), total, state=clock + accuracy)
            if on_round is not None:
                on_round(row, model)

        yield shown if bar.visible else on_round
