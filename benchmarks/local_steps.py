"""What local steps cost: the engine that `auto` takes against the loop engine and a plain loop.

    python benchmarks/local_steps.py [--users N] [--steps N] [--rounds N] [--stragglers 0.9]

All run FedAvg's round on as many rows, one round of each in turn, and a ratio is the median over
rounds of what it takes to what `auto` takes. With stragglers the first two run SALF's, where users
stop in one of their steps; the plain loop waits for everybody. With --chunks, the stacked engine's
round for several sizes of its chunks; with --profile, where the time of both sides goes.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from results import note
from torch import nn
from torch.nn import functional as F

from engines import DIGIT, PICTURE, ResidualNet, group_norm
from salf.common.process import kept_memory
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.data.sampling import LocalWork
from salf.engines import Engine, StackedEngine
from salf.engines import engine as make_engine
from salf.methods import method
from salf.models import PAPER_MODELS
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

SAMPLES, BATCH = 20_000, 16


def of_pfl() -> nn.Module:
    """The network of the job that pfl publishes its speed with (benchmarks/peers)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: PAPER_MODELS["mlp"](DIGIT, 10), DIGIT),
    "cnn": (lambda: PAPER_MODELS["cnn"](DIGIT, 10), DIGIT),
    "images": (of_pfl, PICTURE),
    "residual": (lambda: ResidualNet(group_norm), PICTURE),
}


def made_up(shape: tuple[int, ...]) -> Samples:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, *shape), dtype=np.uint8))
    return Samples(pixels, torch.from_numpy(rng.integers(0, 10, SAMPLES)))


def simulation(
    engine: Engine, samples: Samples, users: int, steps: int, stragglers: float = 0.0
) -> Simulation:
    """FedAvg, or SALF, on made-up images."""
    shares = Partitioned(samples, np.array_split(np.arange(SAMPLES), users))
    world, local = AtDeadline(Mixture(users, len(engine.layers), stragglers)), LocalWork(steps)
    problem = Problem(engine.model, engine.layers, shares)
    recipe = Recipe(lambda t: 0.01, batch_size=BATCH, local=local, engine=engine)
    return Simulation(problem, method("salf" if stragglers else "fedavg"), world, recipe)


def plain_loop(model: nn.Module, samples: Samples, users: int, steps: int) -> Callable[[], None]:
    """FedAvg as one writes it in PyTorch: one user after the other, on all threads."""
    inputs, labels = samples.rows()
    shares = torch.arange(SAMPLES).chunk(users)
    weights = list(model.parameters())
    optimiser = torch.optim.SGD(weights, lr=0.01)

    def step() -> None:
        start = [weight.detach().clone() for weight in weights]
        total = [torch.zeros_like(weight) for weight in start]
        for share in shares:
            with torch.no_grad():
                torch._foreach_copy_(weights, start)
            for _ in range(steps):
                rows = share[torch.randint(len(share), (BATCH,))]
                optimiser.zero_grad()
                F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
                optimiser.step()
            torch._foreach_add_(total, [weight.detach() for weight in weights])
        with torch.no_grad():
            torch._foreach_copy_(weights, torch._foreach_div(total, users))

    return step


def seconds(step: Callable[[], object]) -> float:
    """The time of one round."""
    start = perf_counter()
    step()
    return perf_counter() - start


def main() -> None:
    """Print a line per model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", default="mlp,cnn", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--stragglers", type=float, default=0.0)
    parser.add_argument("--chunks", action="store_true")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print(
        f"{asked.users} users x {BATCH} rows, {asked.steps} local steps, "
        f"{asked.stragglers:.0%} stragglers"
    )
    for name in asked.models.split(","):
        make, shape = MODELS[name]
        samples, sides = made_up(shape), []
        example = torch.zeros(BATCH, *shape)
        for kind in ("auto", "loop"):
            model = make()
            of = model, Layers.of(model, example=example)
            made = make_engine(kind, *of, example=example, several_steps=asked.steps > 1)
            side = simulation(made, samples, asked.users, asked.steps, asked.stragglers)
            if kind == "auto":
                made.rows_of = side.batches.of_round
            sides.append(side)
        rounds = [*(side.step for side in sides)]
        rounds.append(plain_loop(make(), samples, asked.users, asked.steps))
        with kept_memory():
            times = [[seconds(step) for step in rounds] for _ in range(asked.rounds + 2)][2:]
        fast, loop, plain = (median(column) * 1e3 for column in zip(*times, strict=True))
        ratios = [median(row[other] / row[0] for row in times) for other in (1, 2)]
        chosen = sides[0].engine.name
        note(f"{name}, {asked.steps} local steps: {chosen}", fast, "ms")
        note(f"{name}, {asked.steps} local steps: loop / {chosen}", ratios[0], "")
        note(f"{name}, {asked.steps} local steps: plain loop / {chosen}", ratios[1], "")
        print(
            f"{name}: {chosen} {fast:.0f} ms, loop {loop:.0f}, plain loop {plain:.0f}; "
            f"loop / auto {ratios[0]:.2f}, plain loop / auto {ratios[1]:.2f}; {sides[0].engine.why}"
        )
        for side, step in (("plain loop", rounds[2]), ("auto", rounds[0])) if asked.profile else ():
            with torch.profiler.profile() as profile:
                step()
            events = profile.key_averages()
            total = sum(event.self_cpu_time_total for event in events)
            print(f"{name}, {side}: {total / 1e3 / asked.users / asked.steps:.2f} ms a step")
            for event in sorted(events, key=lambda event: -event.self_cpu_time_total)[:12]:
                print(f"  {event.self_cpu_time_total / total:5.1%} {event.key}")
    if asked.chunks:
        for megabytes in (2, 4, 8, 16, 32, 64, 128):
            model = PAPER_MODELS["mlp"]((1, 28, 28), 10)
            made = StackedEngine(model, Layers.of(model), chunk_bytes=megabytes * 2**20)
            side = simulation(made, made_up(DIGIT), asked.users, asked.steps)
            with kept_memory():
                times = [seconds(side.step) for _ in range(asked.rounds + 1)][1:]
            print(f"mlp, chunks of {megabytes} MiB: {median(times) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
