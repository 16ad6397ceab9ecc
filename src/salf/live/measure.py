"""A fleet from the record of a live run.

Every recorded round of a user gives the times of its stages: those it completed as they were, the
others as they usually are at the pace of that round, but no shorter than the time that was left.
What the round took beside them (messages, the server's step, work that was cut off) is its
overhead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from salf.common.errors import SalfError
from salf.common.files import csv_text, write_whole
from salf.core.arrivals import Floats, Ints
from salf.core.rows import Row
from salf.worlds.fleet.devices import Devices, Fleet
from salf.worlds.fleet.jitter import Traces

SLOWER, FASTER = 4.0, 0.25  # the paces of a round, compared with the user's usual one, are between
BARELY = 1e-6  # what a stage that did not fit took longer than the time left, in parts of it
STARTED = 0.9  # deadlines after which the answer of a round comes that was begun in vain


@dataclass(frozen=True, eq=False)
class DeviceTimes:
    """The recorded rounds of one user, an entry each."""

    rounds: Ints
    stages: Floats  # [rounds, L] seconds, from the last layer to the first
    overhead: Floats
    rows: int  # of the batches these times are for


@dataclass(frozen=True, eq=False)
class Measured:
    """The devices of a live run, by the names of their users."""

    devices: dict[str, DeviceTimes]
    layers: int

    def fleet(self) -> Fleet:
        """What `Fleet.csv` reads from the file that `write` leaves."""
        own = list(self.devices.values())
        usual = np.array([np.median(each.stages.sum(axis=1)) for each in own])
        rows = np.array([each.rows for each in own]) / Devices.REFERENCE
        return Fleet.of(
            (self.layers * rows / usual).tolist(),
            jitter=Traces(tuple(each.stages for each in own), tuple(each.overhead for each in own)),
            counted="layers",
            name="measured",
        )

    def write(self, path: Path) -> None:
        """A line for every stage of every round; stage 0 is the overhead."""
        lines = (
            [number, t, stage, f"{seconds:.9g}", device.rows]
            for number, device in enumerate(self.devices.values())
            for t, stages, beside in zip(
                device.rounds.tolist(), device.stages, device.overhead, strict=True
            )
            for stage, seconds in enumerate([beside, *stages])
        )
        write_whole(path, csv_text([["device", "round", "stage", "seconds", "rows"], *lines]))


def from_rows(rows: Sequence[Row], batch_size: int) -> Measured:
    """The devices of recorded rounds."""
    again = "Run `salf live` again, with a longer deadline=."
    if not any(row.stages for row in rows):
        raise SalfError(f"the record has no layer times, as nobody completed a layer. {again}")
    layers = len(rows[0].reached)
    users = sorted({user for row in rows for user in row.depths}, key=_in_order)
    size = {user: _usual_rows(rows, user, batch_size) for user in users}
    usual = {user: _usual_stages(rows, user, size[user], layers) for user in users}
    known = np.array([each for each in usual.values() if np.isfinite(each).all()])
    if not len(known):
        raise SalfError(f"nobody completed all layers, so their times are unknown. {again}")
    shape = np.median(known / known[:, :1], axis=0)  # of a round, compared with its first stage
    devices = {}
    for user in users:
        asked = [row for row in rows if user in row.depths and user not in dict(row.rejected)]
        if not asked:
            raise SalfError(f"{user} has no round that could be measured.")
        stages = _filled(usual[user], shape, float(np.median(known[:, 0])))
        firsts = _first_stages(asked, user, size[user])
        found = [
            _round(row, user, stages, size[user], first)
            for row, first in zip(asked, firsts, strict=True)
        ]
        times, beside = (np.array(each) for each in zip(*found, strict=True))
        devices[user] = DeviceTimes(np.array([r.round for r in asked]), times, beside, size[user])
    return Measured(devices, layers)


def _usual_rows(rows: Sequence[Row], user: str, batch_size: int) -> int:
    chosen = [row.rows[user] for row in rows if user in row.rows]
    return int(np.median(chosen)) if chosen else batch_size


def _usual_stages(rows: Sequence[Row], user: str, size: int, layers: int) -> Floats:
    """The median time of each stage for a batch of this size; nan where none was completed."""
    found = [
        [row.stages[user][stage] * size / row.rows.get(user, size)
         for row in rows if len(row.stages.get(user, ())) > stage]
        for stage in range(layers)
    ]  # fmt: skip
    return np.array([np.median(each) if each else np.nan for each in found])


def _filled(usual: Floats, shape: Floats, first: float) -> Floats:
    """The usual stages, those that were never completed in the proportions of the other users."""
    seen = np.isfinite(usual)
    scale = np.median(usual[seen] / shape[seen]) if seen.any() else first
    return np.where(seen, usual, scale * shape)


def _first_stages(rows: Sequence[Row], user: str, size: int) -> Floats:
    """How long the first stage would have taken in rounds without any; 0 in the others.

    The times are log-normal, and those beyond T_max are censored: the law is fitted to the times of
    the rounds that completed it and the number of rounds that were started and did not. Those
    without any then take the quantiles of the law beyond T_max. If none completed it, it is only
    known that it takes longer than T_max.
    """
    grown = np.array([size / row.rows.get(user, size) for row in rows])
    limits = np.array([inf if row.deadline is None else row.deadline for row in rows]) * grown
    times = np.array([(*row.stages.get(user, ()), 0.0)[0] for row in rows]) * grown
    none = (times == 0) & np.isfinite(limits)
    found = np.zeros(len(rows))
    if not none.any() or not (times > 0).any():
        return found
    began = np.array([STARTED * (row.deadline or 0.0) for row in rows])
    started = none & (np.array([row.arrived.get(user, inf) for row in rows]) >= began)
    logs, missed = np.log(times[times > 0]), np.log(limits[started])
    middle = np.linspace(logs.min() - 1, max(logs.max(), np.log(limits[none]).max()) + 2, 121)
    spread = np.geomspace(0.03, 1.5, 24)
    mu, sigma = (grid[..., None] for grid in np.meshgrid(middle, spread, indexing="ij"))
    density = -(((logs - mu) / sigma) ** 2) / 2 - np.log(sigma)
    beyond = log_ndtr((mu - missed) / sigma)
    best = np.argmax(density.sum(axis=2) + beyond.sum(axis=2))
    m, s = mu.ravel()[best], sigma.ravel()[best]
    # Spread over the rounds in a fixed order that has nothing to do with theirs.
    order = np.random.default_rng(0).permutation(int(none.sum()))
    place = (order + 0.5) / len(order)
    below = ndtr((np.log(limits[none]) - m) / s)
    chance = np.clip(below + (1 - below) * place, 0, 1 - 1e-9)
    found[none] = np.exp(m + s * ndtri(chance)) / grown[none]
    return found


def _round(row: Row, user: str, usual: Floats, size: int, first: float) -> tuple[Floats, float]:
    """The stages of one round for a batch of this size, and its overhead."""
    done = np.asarray(row.stages.get(user, ()), np.float64)
    grown = size / row.rows.get(user, size)
    deadline = inf if row.deadline is None else row.deadline
    pace = 1.0
    if len(done) and (known := usual[: len(done)].sum() / grown) > 0:
        pace = float(np.clip(done.sum() / known, FASTER, SLOWER))
    elif first > 0:
        pace = float(np.clip(first * grown / usual[0], FASTER, SLOWER))
    stages = np.concatenate([done, usual[len(done) :] * pace / grown])
    if len(done) < len(usual) and deadline < inf:
        left = max(0.0, deadline - float(done.sum())) * (1 + BARELY) + BARELY * deadline
        stages[len(done)] = max(stages[len(done)], left)
    if user in row.arrived:
        closing = row.seconds - max(row.arrived.values())
        beside = row.arrived[user] + closing - float(done.sum())
    else:  # it was waited for until the end, or it was not asked
        waited = row.limit is not None and row.seconds >= 0.9 * row.limit
        beside = row.seconds if waited else 0.0
    return stages * grown, max(beside, 0.0)


def _in_order(user: str) -> tuple[int, str]:
    """user-2 before user-10."""
    number = user.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, user)
