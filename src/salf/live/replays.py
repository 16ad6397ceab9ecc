"""Replay a live run in the simulator: the same method, data, batches and depths, no clock."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model
from torch import nn
from torch.nn.utils import parameters_to_vector

from salf.common.errors import SalfError
from salf.common.registry import importing_nothing
from salf.core import rows as records
from salf.core.arrivals import Ints
from salf.core.rows import Row
from salf.live.users import user_name
from salf.runs.federation import Given, from_config
from salf.runs.folder import CONFIG, MODEL, ROUNDS
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config
from salf.runs.training import History, OnRound
from salf.worlds.base import Recorded


def recorded(folder: Path) -> list[Row]:
    """The closed rounds of the live run in this folder."""
    if not (folder / ROUNDS).exists():
        raise SalfError(f"{folder} contains no live run: it has no {ROUNDS}.")
    if not (rows := records.read(folder / ROUNDS)):
        raise SalfError(f"{folder} has no closed round to replay.")
    return rows


@dataclass(frozen=True)
class Replay:
    """The simulated run, and the relative distance between its model and the live one's."""

    history: History
    distance: float | None  # None while the live run is not finished


def replay(folder: Path | str, on_round: OnRound | None = None, *, trust: bool = False) -> Replay:
    """Replay the recorded rounds of the live run in this folder in the simulator.

    A config may name code of one's own by import path: it is run only with `trust`.
    """
    folder = Path(folder)
    with nullcontext() if trust else importing_nothing(str(folder / CONFIG)):
        return _replay(folder, on_round)


def _replay(folder: Path, on_round: OnRound | None) -> Replay:
    rows = recorded(folder)
    live = load_config(str(folder / CONFIG))
    assert isinstance(live, LiveConfig)
    config = live.simulated()
    numbers = {user_name(number): number - 1 for number in range(1, config.users + 1)}
    training = from_config(config, Given(world=_world(rows, numbers)))
    simulation = training.simulation
    seen: set[str] = set()  # users that were asked so far

    def prepare(row: Row) -> None:
        """Give users their recorded batches."""
        seen.update(row.depths)
        simulation.everybody = float(len(seen))
        simulation.pipeline.left(set(numbers.values()) - {numbers[name] for name in row.gone})
        if row.rows:
            sizes = np.full(config.users, config.batch_size)
            for name, own in row.rows.items():
                sizes[numbers[name]] = own
            simulation.batches.batch_size = sizes
            simulation.engine.rows_of = None  # worker processes would not know of it

    def after(row: Row, model: nn.Module) -> None:
        if row.round < len(rows):
            prepare(rows[row.round])
        if on_round is not None:
            on_round(row, model)

    prepare(rows[0])
    history = training.run(len(rows), on_round=after)
    return Replay(history, _distance(simulation.model, folder / MODEL))


def _world(rows: Sequence[Row], numbers: Mapping[str, int]) -> Recorded:
    """What was recorded, as a world."""
    for row in rows:
        if strangers := sorted(row.depths.keys() - numbers.keys()):
            raise SalfError(
                f"{strangers[0]!r} took part with data of its own, so the run cannot be replayed."
            )
    asked = [(row, sorted(row.depths, key=numbers.__getitem__)) for row in rows]

    def each(of: Callable[[Row, str], int]) -> list[Ints]:
        return [np.array([of(row, name) for name in names], np.int64) for row, names in asked]

    unknown = (1.0,) * len(rows[0].reached)  # reach of who sent nothing does not matter
    reach = [[row.reach.get(name, unknown) for name in names] for row, names in asked]
    return Recorded(
        len(numbers),
        each(lambda _, name: numbers[name]),
        each(lambda row, name: row.depths[name]),
        [np.asarray(row.unreached) for row in rows],
        each(lambda row, name: row.steps.get(name, (1, 1))[0]),
        [np.array(chances, np.float64).T for chances in reach],
    )


@torch.no_grad()
def _distance(model: nn.Module, stored: Path) -> float | None:
    if not stored.exists():
        return None
    other = deepcopy(model)
    load_model(other, str(stored))
    ours, theirs = (parameters_to_vector(each.parameters()).double() for each in (model, other))
    return float((theirs - ours).norm() / ours.norm())
