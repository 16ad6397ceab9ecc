"""What the simulated clock says about finished runs: time to a target, waiting, waste."""

from collections.abc import Sequence
from dataclasses import dataclass

from salf.runs.training import SLOWEST, History

SHARE = 0.95  # of waiting FedAvg's accuracy at the end: the target, unless one is given


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
