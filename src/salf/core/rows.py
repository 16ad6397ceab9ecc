"""What a run keeps in files: one row per round, simulated or live, and a checkpoint."""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from salf.common.errors import SalfError
from salf.common.files import csv_of, only_ours, write_whole
from salf.core.arrivals import Arrivals, Ints

if TYPE_CHECKING:  # the report reads rows without torch
    from torch import Tensor

MEASURED = "held_out_"  # what columns of metrics.csv begin with


@dataclass(frozen=True)
class Row:
    """One round. The fields from `limit` to `arrived` are known for live rounds only."""

    round: int
    train_loss: float  # the mean over the users that took part; NaN if none did
    reached: tuple[int, ...]  # users whose update layer l got, l = 1..L
    accuracy: float | None = None  # on held-out data, where it was measured
    seconds: float = 0.0  # that the round took
    metrics: Mapping[str, float] = field(default_factory=dict)  # others, measured with the accuracy
    limit: float | None = None  # that it was to take at most: T_max and the grace period
    deadline: float | None = None  # T_max; None if there was none
    depths: Mapping[str, int] = field(default_factory=dict)  # of every user asked; L + 1 if unheard
    unreached: tuple[float, ...] = ()  # p_l
    # Where shares depend on it, how likely each user whose update was used was to reach a layer.
    reach: Mapping[str, Sequence[float]] = field(default_factory=dict)
    late: int = 0  # updates of earlier rounds that came during this one
    rejected: Sequence[tuple[str, str]] = ()  # (user, reason)
    silent: Sequence[str] = ()  # users of whom no update came in time
    gone: Sequence[str] = ()  # users whose votes in a robust rule ended because they left
    # With several local steps, those of every user asked: begun and planned.
    steps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Where users choose their batches, the rows of each whose update was used.
    rows: Mapping[str, int] = field(default_factory=dict)
    arrived: Mapping[str, float] = field(default_factory=dict)  # seconds after which an update was
    bytes: float = 0.0  # of all downloads and uploads by the clock; live, of the updates
    # What follows is known of simulated rounds with a clock only.
    clock: float | None = None  # simulated seconds from the start to the end of the round
    waited: float = 0.0  # seconds, summed over users, that were done and waited for the rest
    work: float = 0.0  # multiply-adds of all users
    wasted_work: float = 0.0  # those of them that are in no update that counts
    wasted_bytes: float = 0.0  # those of users whose updates do not count

    def finished(self, user: str) -> bool:
        """Whether a user completed all layers of all local steps."""
        begun, planned = self.steps.get(user, (1, 1))
        return self.depths[user] == 1 and begun == planned

    def delivered(self, user: str) -> bool:
        """Whether a user completed a layer."""
        return self.depths[user] <= len(self.reached) or self.steps.get(user, (1, 1))[0] > 1


TIMED = ("clock", "waited", "work", "wasted_work", "bytes", "wasted_bytes")


def timed(arrived: Arrivals, counting: Ints) -> dict[str, Any]:
    """Entries of a round by the simulated clock; the updates of `counting` count."""
    spent = arrived.spent
    if spent is None:
        return {}
    counts = np.isin(arrived.user, counting)
    work, sent = float(spent.work.sum()), float(spent.bytes.sum())
    return {
        "clock": spent.clock,
        "waited": float(spent.waited.sum()),
        "work": work,
        "wasted_work": max(0.0, work - float(spent.counted @ counts)),
        "bytes": sent,
        "wasted_bytes": sent - float(spent.bytes @ counts),
    }


def with_metrics(row: Row, measured: Mapping[str, float]) -> Row:
    """The row with what was measured after it, the accuracy and others."""
    others = {name: value for name, value in measured.items() if name != "accuracy"}
    return replace(row, accuracy=measured.get("accuracy"), metrics=others)


def to_table(row: Row) -> dict[str, Any]:
    """A row as JSON has it, which knows no NaN."""
    table = asdict(row)
    for values in (table, table["metrics"]):
        values |= {n: None for n, v in values.items() if isinstance(v, float) and not isfinite(v)}
    return table


def from_table(table: Mapping[str, Any]) -> Row:
    """Invert `to_table`."""
    values = _with_tuples(table)
    for measured, names in ((values, ["train_loss"]), (values["metrics"], list(table["metrics"]))):
        measured |= {name: float("nan") for name in names if measured[name] is None}
    return Row(**values)


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def columns(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A record per round of what every run knows, by column."""
    clocked = any(row.clock is not None for row in rows)
    live = any(row.bytes for row in rows)  # a run without a clock that has bytes
    timed = TIMED if clocked else ("bytes",) if live else ()
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    return [
        {
            **{name: getattr(row, name) for name in ("round", "train_loss", "accuracy")},
            **{f"{MEASURED}{name}": row.metrics.get(name) for name in names},
            **{f"reached_{layer}": users for layer, users in enumerate(row.reached, 1)},
            "seconds": row.seconds,
            **{name: getattr(row, name) for name in timed},
        }
        for row in rows
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """metrics.csv: a line per round."""
    lines = [{**each, "seconds": f"{each['seconds']:.6f}"} for each in columns(rows)]
    write_whole(path, csv_of(lines))


def read_csv(path: Path) -> list[Row]:
    """The rows of a metrics.csv."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            Row(
                int(line["round"]),
                float(line["train_loss"]),
                tuple(int(n) for key, n in line.items() if key.startswith("reached_")),
                float(line["accuracy"]) if line["accuracy"] else None,
                float(line["seconds"]),
                {
                    key.removeprefix(MEASURED): float(value)
                    for key, value in line.items()
                    if key.startswith(MEASURED) and value
                },
                **{name: float(line[name]) for name in TIMED if name in line},  # type: ignore[arg-type]
            )
            for line in csv.DictReader(stream)
        ]


def append(path: Path, row: Row) -> None:
    """Add a round to a record of JSON lines, for good."""
    with open(path, "a", encoding="utf-8", opener=only_ours) as stream:
        stream.write(_line(row))
        stream.flush()
        os.fsync(stream.fileno())  # before the checkpoint that says it is there


def read(path: Path) -> list[Row]:
    """The rounds of a record, in order. A last line that is not whole is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole, _, _ = text.rpartition("\n")
    try:
        return [from_table(json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SalfError(f"{path} is not the record of a live run: {error}.") from None


def resume(path: Path, t: int, *, saved: bool = True) -> list[Row]:
    """Make the record that of a server that goes on after round t, and return its rounds.

    One that was killed may have written a round more than it had `saved`, which is run again. A
    record of anything else is somebody's, and stays as it is.
    """
    records = read(path)
    whole = [done.round for done in records[:t]] == list(range(1, t + 1))
    if not whole or len(records) > t + saved:
        raise SalfError(
            f"{path} has {len(records)} rounds, but the server's checkpoint ends at round {t}. "
            "Choose another folder to start over."
        )
    rewrite(path, records[:t])
    return records[:t]


def rewrite(path: Path, records: Iterable[Row]) -> None:
    """Keep just these."""
    write_whole(path, "".join(_line(record) for record in records), private=True)


def _line(row: Row) -> str:
    return json.dumps(to_table(row)) + "\n"


def write_checkpoint(path: Path, groups: Mapping[str, Mapping[str, "Tensor"]], state: Any) -> None:
    """Write groups of tensors by name, such as weights and velocity, and what is no tensor."""
    from safetensors.torch import save

    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    write_whole(path, save(tensors, {"state": json.dumps(state)}), private=True)


def read_checkpoint(path: Path) -> tuple[dict[str, dict[str, "Tensor"]], Any] | None:
    """What `write_checkpoint` wrote, the groups and the rest; None without a file."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, "pt") as stored:
            state = json.loads(stored.metadata()["state"])
            for key in stored.keys():  # noqa: SIM118  (it is no mapping)
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = stored.get_tensor(key)
    except FileNotFoundError:
        return None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise unreadable(path, error) from None
    return groups, state


def unreadable(path: Path, error: object) -> SalfError:
    """A checkpoint that is damaged, or of another run."""
    return SalfError(f"{path} cannot be read ({error}). Delete it to start over.")
