"""A live run again, in the simulator: the same data, batches and depths, without the clock."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors.torch import load_model
from torch import nn

from salf.depth import Depths, Ints
from salf.errors import SalfError
from salf.experiments.config import load_config
from salf.experiments.live import ROUNDS, user_name
from salf.experiments.run import CONFIG, MODEL
from salf.experiments.training import History, Row, from_config
from salf.live import record
from salf.live.record import Record
from salf.methods import Group, Method, Plan, Round
from salf.methods.drop import Drop
from salf.methods.salf import SALF


@dataclass(frozen=True)
class Recorded(Method):
    """Every round's depths and p_l as they were, put together by the rule of the live server."""

    name: ClassVar[str] = "recorded"

    records: Sequence[Record] = field(kw_only=True)
    users: int = field(kw_only=True)
    layers: int = field(kw_only=True)
    partial: bool = field(kw_only=True)  # SALF; else only those who finished count

    def plan(self, round: Round, memory: Ints) -> tuple[Plan, Ints]:
        """Weigh the users as the live server did."""
        done = self.records[round.t - 1]
        depth = np.full(self.users, self.layers + 1)
        for number in range(1, self.users + 1):
            depth[number - 1] = done.depths.get(user_name(number), self.layers + 1)
        rule = SALF() if self.partial else Drop()
        unreached = np.asarray(done.unreached) if self.partial else np.zeros(self.layers)
        weights = rule.weights(Depths(depth, depth > 1), unreached)
        return Plan((Group.of(weights, round.t),)), memory


def recorded(folder: Path) -> list[Record]:
    """The closed rounds of the live run in this folder."""
    if not (folder / ROUNDS).exists():
        raise SalfError(f"{folder} holds no live run: there is no {ROUNDS} in it.")
    if not (records := record.read(folder / ROUNDS)):
        raise SalfError(f"{folder} has no closed round to replay.")
    return records


@dataclass(frozen=True)
class Replay:
    """The simulated run, and how far from its model the live one's is, in parts of its norm."""

    history: History
    distance: float | None  # None while the live run is not finished


def replay(folder: Path, on_row: Callable[[Row], None] | None = None) -> Replay:
    """Run the rounds a live run recorded in this folder again, in the simulator."""
    records = recorded(folder)
    config = load_config(str(folder / CONFIG))
    known = {user_name(number) for number in range(1, config.users + 1)}
    for done in records:
        if strangers := sorted(done.depths.keys() - known):
            raise SalfError(
                f"{strangers[0]!r} took part with data of its own, so the run cannot be replayed."
            )
    method = Recorded(
        records=records,
        users=config.users,
        layers=len(records[0].reached),
        partial=config.method == "salf",
    )
    training = from_config(config, method=method)
    rows = []
    for row in training.rows(len(records)):
        rows.append(row)
        if on_row is not None:
            on_row(row)
    history = History(tuple(rows), training.test_accuracy())
    return Replay(history, _distance(training.simulation.model, folder / MODEL))


def _distance(model: nn.Module, stored: Path) -> float | None:
    if not stored.exists():
        return None
    other = deepcopy(model)
    load_model(other, str(stored))
    ours, theirs = (
        torch.cat([parameter.detach().flatten().double() for parameter in side.parameters()])
        for side in (model, other)
    )
    return float((theirs - ours).norm() / ours.norm())
