"""What a cluster costs: a model measured here, checked on the nodes of one machine, and beyond it.

    OMP_NUM_THREADS=1 python benchmarks/scale.py [--nodes 1,2,3] [--gigabits 10] [--cores 16]

Starts Ray nodes of one core each on this machine. A round costs

    T = a + s pieces + r bytes + the bytes over the network + users c / cores

with a, s and r fitted to rounds on two nodes whose users compute next to nothing. To see more nodes
than there are cores, the users of the check wait for a time instead of computing.
"""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, sleep

import numpy as np
import torch
from results import note
from rich.console import Console
from rich.table import Table
from torch import nn

import salf
from salf.cluster import Cluster
from salf.engines.base import LARGEST, PIECES
from salf.models import PAPER_MODELS
from salf.runs.federation import Given
from salf.runs.pool import Job
from salf.runs.run import run

ROUNDS = 8  # of which the first ones start workers
WAIT = 0.05  # seconds that a user waits in the check
JOBS, JOB = 24, 0.5  # runs of a study, and the seconds of each in the check
LARGE = 2**21  # weights: 8 MiB


class Waiting(nn.Module):
    """A model of so many weights whose users wait, one at a time."""

    def __init__(self, weights: int, seconds: float) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, max(1, weights // 9)), nn.Linear(8, 2)
        self.register_buffer("steps", torch.zeros(()))  # what may change is not stacked
        self.seconds = seconds

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            sleep(self.seconds)
        return self.head(rows) + self.inner(rows).mean(1, keepdim=True)


@contextmanager
def nodes(count: int) -> Iterator[Cluster]:
    """A Ray cluster of so many nodes with a core each, on this machine."""
    from ray.cluster_utils import Cluster as Nodes

    started = Nodes(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(count - 1):
            started.add_node(num_cpus=1)
        with Cluster(started.address) as cluster:
            yield cluster
    finally:
        started.shutdown()


def round_seconds(cluster: Cluster, users: int, weights: int, wait: float) -> float:
    """The median seconds of a round, with two local steps."""
    torch.manual_seed(0)
    rows = torch.randn(users * 4, 8), torch.zeros(users * 4, dtype=torch.long)
    data = salf.data.from_tensors(rows, (rows[0][:2], rows[1][:2]))
    config = salf.Config(
        users=users, rounds=ROUNDS, local_steps=2, batch_size=2, method="fedavg", stragglers=0.0,
        eval_every=10 * ROUNDS, validation=0.0, threads=1,
    )  # fmt: skip
    ends: list[float] = []
    given = Given(None, Waiting(weights, wait / 2), data)
    run(
        config,
        given=given,
        workers=cluster,
        on_round=lambda row, model: ends.append(perf_counter()),
    )
    return median(np.diff(ends)[2:])


def study_seconds(cluster: Cluster, jobs: int, wait: float) -> float:
    """The seconds of a study whose runs wait."""
    begin = perf_counter()
    cluster.do({f"run {n}": Job(partial(waited, wait), 1.0) for n in range(jobs)})
    return perf_counter() - begin


def waited(seconds: float, progress: object) -> None:
    sleep(seconds)


def pieces_of(users: int) -> int:
    return math.ceil(users / min(math.ceil(users / PIECES), LARGEST))


@dataclass(frozen=True)
class Costs:
    """What is measured: seconds of a round, of a piece, of a byte, and of a run of a study."""

    fixed: float
    piece: float
    byte: float
    run: float

    def round(self, users: int, each: float, size: int, cores: int, network: float = 0.0) -> float:
        """A round of users that take `each` seconds; `network` are seconds a byte of each node."""
        pieces = pieces_of(users)
        together = math.ceil(pieces / min(cores, pieces)) * math.ceil(users / pieces)
        data = pieces * size * (self.byte + network)
        return self.fixed + pieces * self.piece + data + together * each

    def study(self, runs: int, each: float, cores: int) -> float:
        return runs * self.run + math.ceil(runs / cores) * each


def measured(cluster: Cluster) -> Costs:
    few, many = 8, PIECES
    small, more = (round_seconds(cluster, users, 0, 0.0) for users in (few, many))
    large = round_seconds(cluster, many, LARGE, 0.0)
    study_seconds(cluster, 4, 0.0)  # starts workers
    runs = 3 * JOBS
    piece = max(0.0, (more - small) / (many - few))
    byte = max(0.0, (large - more) / (many * LARGE * 4))
    return Costs(small - few * piece, piece, byte, study_seconds(cluster, runs, 0.0) / runs)


def user_seconds(kind: str) -> tuple[float, int]:
    """The seconds of one core for a user of five local steps, and the bytes of its update."""
    torch.manual_seed(0)
    model = PAPER_MODELS[kind]((1, 28, 28), 10)
    users = 8
    rows = torch.randn(users * 32, 1, 28, 28), torch.zeros(users * 32, dtype=torch.long)
    ends: list[float] = []
    salf.train(
        model, rows, users=users, rounds=6, local_steps=5, method="fedavg", stragglers=0.0,
        validation=0.0, eval_every=100, threads=1,
        on_round=lambda row, model: ends.append(perf_counter()),
    )  # fmt: skip
    size = sum(each.nbytes for each in model.parameters())
    return median(np.diff(ends)[1:]) / users, size


def check(costs: Costs, counts: Sequence[int], console: Console) -> None:
    """Measured beside predicted, on clusters of so many nodes."""
    table = Table(title="Seconds, predicted and measured on one machine", title_justify="left")
    for column in ("nodes", "a round of 32 users that wait 50 ms", "", "24 runs of 0.5 s", ""):
        table.add_column(column, justify="right")
    for count in counts:
        with nodes(count) as cluster:
            found = round_seconds(cluster, PIECES, 0, WAIT)
            study_seconds(cluster, 2 * count, 0.0)
            study = study_seconds(cluster, JOBS, JOB)
        said = costs.round(PIECES, WAIT, 0, count), costs.study(JOBS, JOB, count)
        note(f"a round on {count} nodes, predicted / measured", said[0] / found, "")
        note(f"a study on {count} nodes, predicted / measured", said[1] / study, "")
        row = (said[0], found, said[1], study)
        table.add_row(str(count), *(f"{each:.2f}" for each in row))
        print(f"{count} nodes:", *(f"{each:.2f}" for each in row), flush=True)
    console.print(table)


def predict(costs: Costs, machines: Sequence[int], cores: int, gigabits: float) -> Table:
    """Rounds of two models, and studies, on so many machines."""
    network = 8 / (gigabits * 1e9)
    title = f"Predicted: machines of {cores} cores, {gigabits:g} Gbit/s; times faster than one core"
    table = Table(title=title, title_justify="left")
    for column in ("", *(f"{each} machines" for each in machines), "ends at"):
        table.add_column(column, justify="left" if not column else "right")
    for kind in ("mlp", "cnn"):
        each, size = user_seconds(kind)
        for users in (100, 10_000):
            alone = users * each
            cells = []
            for count in machines:
                took = costs.round(users, each, size, count * cores, network)
                cells.append(f"{took:.3g} s, {alone / took:.0f}x")
            least = costs.round(users, each, size, 10**9, network)
            name = f"round, {kind}, {users:,} users of {each * 1e3:.1f} ms, {size / 2**20:.1f} MiB"
            table.add_row(name, *cells, f"{least:.3g} s, {alone / least:.0f}x")
    for runs, each in ((60, 600.0), (10_000, 60.0)):
        alone = runs * each
        cells = [costs.study(runs, each, count * cores) for count in machines]
        least = costs.study(runs, each, 10**9)
        shown = [f"{took:.3g} s, {alone / took:.0f}x" for took in (*cells, least)]
        table.add_row(f"study, {runs:,} runs of {each:g} s", *shown)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="1,2,3", help="of the check")
    parser.add_argument("--machines", default="1,10,100", help="of the prediction")
    parser.add_argument("--cores", type=int, default=16, help="of a machine")
    parser.add_argument("--gigabits", type=float, default=10.0, help="of the network, a second")
    parser.add_argument("--quick", action="store_true", help="one check, on two nodes")
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    counts = [2] if given.quick else [int(each) for each in given.nodes.split(",")]
    console = Console(width=140)
    with nodes(2) as cluster:
        costs = measured(cluster)
    console.print(
        f"a round {costs.fixed * 1e3:.1f} ms, a piece {costs.piece * 1e3:.2f} ms, "
        f"a MiB {costs.byte * 2**20 * 1e3:.2f} ms, a run of a study {costs.run * 1e3:.1f} ms"
    )
    note("a round on a cluster, besides computing", costs.fixed * 1e3, "ms")
    note("a piece of a round", costs.piece * 1e3, "ms")
    note("a MiB of a sum", costs.byte * 2**20 * 1e3, "ms")
    note("a run of a study, besides computing", costs.run * 1e3, "ms")
    check(costs, counts, console)
    machines = [int(each) for each in given.machines.split(",")]
    console.print(predict(costs, machines, given.cores, given.gigabits))


if __name__ == "__main__":
    main()
