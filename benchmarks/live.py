"""What a live round on Ray costs, and how well it keeps its time.

    python benchmarks/live.py [--rounds 300]

Overhead: rounds with 8 users who compute nothing and answer with a whole update, for a model of
1 MB; from asking them to the new model; and the same messages by Ray alone, right after. In time:
rounds with a deadline, half of the users 8 times as slow; how many closed within T_max and the
grace period, and how much later the others did.
"""

import argparse
from functools import partial
from statistics import median, quantiles
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from salf.live.cluster import cluster
from salf.live.launch import make_server
from salf.live.rounds import Grace, Rounds
from salf.live.server import LiveServer, Row
from salf.live.slow import slowness
from salf.live.update import Task, Update, encode_model
from salf.live.users import make_user, user_name
from salf.problem import Problem
from salf.runs.federation import problem_of
from salf.runs.live_config import live
from salf.runs.presets import PRESETS

USERS, DEADLINE = 8, 0.05
WARM_UP = 20  # rounds that wake everything up
# To reach, on two cores.
MOST_OVERHEAD, LEAST_IN_TIME = 40.0, 99.0
console = Console()


def one_megabyte() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))


class Idle:
    """A user that has its answer ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors = {
            name: torch.zeros_like(tensor) for name, tensor in one_megabyte().named_parameters()
        }

    def train(self, task: Task) -> Update:
        """Answer."""
        return Update(1, self.tensors)


def run(rounds: Rounds, count: int, what: str) -> list[Row]:
    for _ in range(WARM_UP):
        rounds.next()
    return [rounds.next() for _ in track(range(count), what, console=console, transient=True)]


class Echo:
    """What Ray alone takes: an actor that has its answer ready."""

    def __init__(self, size: int) -> None:
        self.content = bytes(size)

    def answer(self, content: bytes) -> bytes:
        """Answer."""
        return self.content


def overhead(count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of our rounds, and of the same messages by Ray alone, right after them."""
    model = one_megabyte()
    server = LiveServer(Problem.of(model), 0.1)
    with cluster():
        from salf.live import ray

        names = [f"user-{number}" for number in range(1, USERS + 1)]
        started = [ray.start_user(name, partial(Idle, name)) for name in names]
        ray.wait_ready(started)
        rows = run(Rounds(server, ray.RayLink(), deadline=10.0), count, "overhead")
        assert not any(row.silent for row in rows)
        del started  # which ends the users
        return [1000 * row.seconds for row in rows], ray_alone(count)


def ray_alone(count: int) -> list[float]:
    import ray

    content = encode_model(dict(one_megabyte().named_parameters()))
    echoes = [ray.remote(Echo).options(num_cpus=0).remote(len(content)) for _ in range(USERS)]
    taken = []
    for _ in track(range(count + WARM_UP), "Ray alone", console=console, transient=True):
        began = perf_counter()
        sent = ray.put(content)
        waiting = [echo.answer.remote(sent) for echo in echoes]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            ray.get(done)
        taken.append(1000 * (perf_counter() - began))
    return taken[WARM_UP:]


def in_time(count: int) -> list[Row]:
    preset = PRESETS["mnist-cnn"]
    config = live(preset, users=USERS, data="synthetic", rounds=count, deadline=DEADLINE)
    factors = slowness("0.5x8", USERS)
    with cluster():
        from salf.live import ray

        started = [
            ray.start_user(user_name(n), partial(make_user, config, n, factor))
            for n, factor in enumerate(factors, 1)
        ]
        ray.wait_ready(started)
        rounds = Rounds(make_server(config, problem_of(config)), ray.RayLink(), DEADLINE, Grace())
        return run(rounds, count, "in time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    count = parser.parse_args().rounds
    torch.set_num_threads(1)

    cost, alone = overhead(count)
    rows = in_time(count)
    kept = [row for row in rows if row.limit is not None and row.seconds <= row.limit]
    over = [1000 * (row.seconds - row.limit) for row in rows if row not in kept and row.limit]
    share = 100 * len(kept) / len(rows)
    depths = [depth for row in rows for depth in row.depths.values()]
    layers = len(rows[0].reached)

    table = Table(title=f"Ray, {USERS} users, {count} rounds")
    table.add_column("")
    table.add_column("measured")
    table.add_column("to reach")
    table.add_row(
        "overhead of a round, 1 MB", f"{median(cost):.1f} ms (median)", f"{MOST_OVERHEAD:.0f} ms"
    )
    table.add_row("", f"{quantiles(cost, n=20)[-1]:.1f} ms (p95)", "")
    table.add_row("the same by Ray alone", f"{median(alone):.1f} ms (median)", "")
    table.add_row("ours over Ray alone", f"{median(cost) / median(alone):.2f}", "")
    table.add_row("closed in T_max + grace", f"{share:.1f} %", f"{LEAST_IN_TIME:.0f} %")
    table.add_row("the others were over by", f"{max(over, default=0):.1f} ms at most", "")
    table.add_row("a round took", f"{1000 * median(row.seconds for row in rows):.1f} ms", "")
    table.add_row(
        "T_max + grace", f"{1000 * median(row.limit or 0 for row in rows):.1f} ms (median)", ""
    )
    for what, some in (
        ("finished", [d for d in depths if d == 1]),
        ("reached some layers", [d for d in depths if 1 < d <= layers]),
        ("reached none, or late", [d for d in depths if d > layers]),
    ):
        table.add_row(f"users who {what}", f"{100 * len(some) / len(depths):.0f} %", "")
    console.print(table)


if __name__ == "__main__":
    main()
