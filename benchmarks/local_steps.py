"""What local steps cost: the engine that `auto` takes against the loop engine.

    python benchmarks/local_steps.py [--users N] [--steps N] [--rounds N]

Both run FedAvg's round (no stragglers) on the same rows of MNIST's size, one round of each in turn,
and the ratio is the median over rounds of loop / auto. With --chunks, the stacked engine's round
for several sizes of its chunks.
"""

import argparse
from statistics import median
from time import perf_counter

import numpy as np
import torch
from results import note

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


def simulation(engine: Engine, users: int, steps: int) -> Simulation:
    """FedAvg on made-up images."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, 1, 28, 28), dtype=np.uint8))
    samples = Samples(pixels, torch.from_numpy(rng.integers(0, 10, SAMPLES)))
    shares = Partitioned(samples, np.array_split(np.arange(SAMPLES), users))
    world, local = AtDeadline(Mixture(users, len(engine.layers), 0.0)), LocalWork(steps)
    problem = Problem(engine.model, engine.layers, shares)
    recipe = Recipe(lambda t: 0.01, batch_size=BATCH, local=local, engine=engine)
    return Simulation(problem, method("fedavg"), world, recipe)


def seconds(simulation: Simulation) -> float:
    """The time of one round."""
    start = perf_counter()
    simulation.step()
    return perf_counter() - start


def main() -> None:
    """Print a line per model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunks", action="store_true")
    asked = parser.parse_args()
    example = torch.zeros(BATCH, 1, 28, 28)
    print(f"{asked.users} users x {BATCH} rows, {asked.steps} local steps")
    for name in ("mlp", "cnn"):
        sides = []
        for kind in ("auto", "loop"):
            model = PAPER_MODELS[name]((1, 28, 28), 10)
            layers = Layers.of(model)
            several = asked.steps > 1
            made = make_engine(kind, model, layers, example=example, several_steps=several)
            side = simulation(made, asked.users, asked.steps)
            if kind == "auto":
                side.engine.rows_of = side.batches.of_round
            sides.append(side)
        for side in sides:
            side.step()
        with kept_memory():
            times = [[seconds(side) for side in sides] for _ in range(asked.rounds)]
        fast, loop = (median(column) * 1e3 for column in zip(*times, strict=True))
        ratio = median(loop / fast for fast, loop in times)
        chosen = sides[0].engine.name
        note(f"{name}, {asked.steps} local steps: {chosen}", fast, "ms")
        note(f"{name}, {asked.steps} local steps: loop / {chosen}", ratio, "")
        print(f"{name}: {chosen} {fast:.0f} ms, loop {loop:.0f} ms, loop / {chosen} {ratio:.2f}")
    if asked.chunks:
        for megabytes in (2, 4, 8, 16, 32, 64, 128):
            model = PAPER_MODELS["mlp"]((1, 28, 28), 10)
            made = StackedEngine(model, Layers.of(model), chunk_bytes=megabytes * 2**20)
            side = simulation(made, asked.users, asked.steps)
            with kept_memory():
                times = [seconds(side) for _ in range(asked.rounds + 1)][1:]
            print(f"mlp, chunks of {megabytes} MiB: {median(times) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
