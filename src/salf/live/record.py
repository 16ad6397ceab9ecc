"""What a live run writes down: one line of JSON for each closed round."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

from salf.errors import SalfError
from salf.files import write_whole
from salf.live.server import Row


@dataclass(frozen=True)
class Record(Row):
    """A closed round as it is kept, with the accuracy on held-out data where it was measured."""

    accuracy: float | None = None


def append(path: Path, record: Record) -> None:
    """Add a round. A line that a killed server left half written is never added to."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(_line(record))
        stream.flush()
        os.fsync(stream.fileno())  # before the state that says it is there


def read(path: Path) -> list[Record]:
    """The rounds of a run, in order. A last line that is not whole is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole, _, _ = text.rpartition("\n")
    try:
        return [_record(line) for line in whole.splitlines()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SalfError(f"{path} is not the record of a live run: {error}.") from None


def resume(path: Path, t: int, *, saved: bool = True) -> list[Record]:
    """Make the record that of a server that goes on after round t, and return its rounds.

    One that was killed may have written a round more than it had `saved`, which is run again. A
    record of anything else is somebody's, and stays as it is.
    """
    records = read(path)
    if [done.round for done in records[:t]] != list(range(1, t + 1)):
        raise SalfError(
            f"{path} does not have all rounds up to {t}. Choose another place to start anew."
        )
    if len(records) > t + saved:
        raise SalfError(
            f"{path} has {len(records)} rounds, of which the server knows {t}. Choose another "
            "place to start anew."
        )
    rewrite(path, records[:t])
    return records[:t]


def rewrite(path: Path, records: Iterable[Record]) -> None:
    """Keep just these."""
    write_whole(path, "".join(_line(record) for record in records))


def _line(record: Record) -> str:
    table = asdict(record)
    table["loss"] = record.loss if isfinite(record.loss) else None  # JSON has no NaN
    return json.dumps(table) + "\n"


def _record(line: str) -> Record:
    table = json.loads(line)
    if unknown := table.keys() - {field.name for field in fields(Record)}:
        raise ValueError(f"it has {sorted(unknown)[0]!r}, which no round has")
    table["loss"] = float("nan") if table["loss"] is None else table["loss"]
    for name in ("reached", "silent", "unreached"):
        table[name] = tuple(table[name])
    table["rejected"] = tuple((user, reason) for user, reason in table["rejected"])
    return Record(**table)
