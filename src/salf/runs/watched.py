"""How far a run is, for whoever waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from salf.common.bars import Bar
from salf.core.rows import Row
from salf.runs.training import OnRound

# Says how much of a job, in [0, 1], is done; raises Stopped when it is to end.
OnPart = Callable[[float], None]


def part_done(row: Row, rounds: int, seconds: float | None) -> float:
    """How much of a run is done after this round, if it ends after its rounds or its seconds."""
    by_rounds = row.round / rounds if rounds else 0.0
    by_clock = (row.clock or 0.0) / seconds if seconds else 0.0
    return max(by_rounds, by_clock)


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

        def after(row: Row, model: nn.Module) -> None:
            nonlocal accuracy
            if row.accuracy is not None:
                accuracy = f"accuracy {row.accuracy:.4f}"
            clock = "" if row.clock is None else f"{row.clock:,.4g} s simulated "
            bar.update(total * part_done(row, rounds, seconds), total, state=clock + accuracy)
            if on_round is not None:
                on_round(row, model)

        yield after if bar.visible else on_round
