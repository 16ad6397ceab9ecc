"""How well a fleet that was measured in a live run simulates that run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Keyed
from salf.core.rows import Row
from salf.live.measure import Measured, from_rows
from salf.live.replays import recorded
from salf.runs.folder import CONFIG
from salf.runs.presets import load_config
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet

SIMULATED = 2000  # rounds that are simulated to compare


@dataclass(frozen=True, eq=False)
class Agreement:
    """How far users came and how long rounds took, live and simulated."""

    users: tuple[str, ...]
    stages: Ints  # of each user's round: its layers, in all local steps
    live: Floats  # [users, 1 + stages]: the share of rounds in which so many stages were complete
    simulated: Floats
    live_times: Floats  # seconds of each round
    simulated_times: Floats
    deadlines: tuple[float, ...]  # T_max of the live rounds that had one

    @property
    def live_seconds(self) -> float:
        return float(self.live_times.mean())

    @property
    def simulated_seconds(self) -> float:
        return float(self.simulated_times.mean())

    def finished(self, depths: Floats) -> Floats:
        """The share of rounds, live or simulated, in which each user completed all stages."""
        return np.asarray(depths[np.arange(len(self.users)), self.stages])

    @property
    def variation(self) -> Floats:
        """The total variation distance of each user's depths."""
        return np.asarray(np.abs(self.live - self.simulated).sum(axis=1) / 2)

    def __str__(self) -> str:
        width = max(map(len, ("user", *self.users)))
        finished = zip(self.finished(self.live), self.finished(self.simulated), strict=True)
        none = zip(self.live[:, 0], self.simulated[:, 0], strict=True)
        lines = [f"{'user':{width}}  finished          no layer          difference"]
        lines += [
            f"{user:{width}}  "
            + "".join(f"{live:4.0%} live, {simulated:4.0%}  " for live, simulated in both)
            + f"{difference:.2f}"
            for user, *both, difference in zip(
                self.users, finished, none, self.variation, strict=True
            )
        ]
        relative = self.simulated_seconds / self.live_seconds - 1
        lines += [
            "Difference between the distributions of depth (total variation), mean over users: "
            f"{self.variation.mean():.3f}.",
            f"Mean duration of a round: {1000 * self.live_seconds:.1f} ms live, "
            f"{1000 * self.simulated_seconds:.1f} ms simulated ({relative:+.1%}).",
        ]
        return "\n".join(lines)


def measure(folder: Path | str) -> tuple[Measured, Agreement]:
    """The devices of the live run in this folder, and how well they simulate it.

    The agreement is between rounds that were not measured and a fleet of the others: every second
    round each.
    """
    rows = recorded(Path(folder))
    size = load_config(str(Path(folder) / CONFIG)).batch_size
    half, other = (rows, rows) if len(rows) < 4 else (rows[::2], rows[1::2])
    return from_rows(rows, size), agreement(from_rows(half, size), other)


def agreement(measured: Measured, rows: Sequence[Row], seed: int = 0) -> Agreement:
    """Simulate rounds with these deadlines, and compare them with the rows.

    Users that were not measured, such as one that joined for a round, are left out.
    """
    users, layers = tuple(measured.devices), measured.layers
    numbers = {user: number for number, user in enumerate(users)}
    asked = [[user for user in row.depths if user in numbers] for row in rows]
    planned = np.ones(len(users), np.int64)
    for row in rows:
        for user in row.steps.keys() & numbers.keys():
            planned[numbers[user]] = row.steps[user][1]
    even = Cost(np.zeros(layers), np.ones(layers), np.zeros(layers))
    size = np.array([each.rows for each in measured.devices.values()])
    timing = Timing(measured.fleet().devices, even, lambda u: size[u], lambda u: planned[u])
    limits = tuple(row.deadline for row in rows if row.deadline is not None)
    world = OnFleet(timing, DeadlineSchedule(limits) if limits else None)
    closing = world if limits else world.waiting()
    live = np.zeros((len(users), 1 + layers * int(planned.max())))
    simulated = np.zeros_like(live)
    for row, present in zip(rows, asked, strict=True):
        for user in present:
            begun, _ = row.steps.get(user, (1, 1))
            live[numbers[user], begun * layers + 1 - row.depths[user]] += 1
    seconds, memory = [], closing.start()
    for t in range(len(rows) * max(1, -(-SIMULATED // len(rows)))):
        of = np.array(sorted(numbers[user] for user in asked[t % len(rows)]), np.int64)
        arrived, _ = closing.arrivals(t % len(rows) + 1, Keyed(seed, t + 1), of, memory)
        simulated[arrived.user, arrived.steps * layers + 1 - arrived.depth] += 1
        assert arrived.spent is not None
        seconds.append(arrived.spent.seconds)
    return Agreement(
        users,
        layers * planned,
        live / np.maximum(live.sum(axis=1, keepdims=True), 1),
        simulated / np.maximum(simulated.sum(axis=1, keepdims=True), 1),
        np.array([row.seconds for row in rows]),
        np.array(seconds),
        limits,
    )
