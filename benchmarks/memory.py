"""The memory of one round with a large cohort: 10,000 users x 16 MNIST-sized images on the CNN.

    python benchmarks/memory.py [--users N]

Prints the largest memory the process ever had, the imports and the data set included, first in the
engine's own chunks and then in larger ones, and by how much the two results differ.
"""

import argparse
import resource
from time import perf_counter

import numpy as np
import torch
from results import note

from salf.common.process import kept_memory
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.engines import FusedEngine
from salf.methods import method
from salf.models import cnn
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

SAMPLES, BATCH = 60_000, 16


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB, from KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=10_000)
    users = parser.parse_args().users
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, 1, 28, 28), dtype=np.uint8))
    samples = Samples(pixels, torch.from_numpy(rng.integers(0, 10, SAMPLES)))
    # Each user has 64 samples; with so many users they share some.
    shares = Partitioned(samples, [(np.arange(64) + 6 * user) % SAMPLES for user in range(users)])
    print(f"before the round: {peak():.2f} GiB at most")
    weights = []
    for chunk_bytes in (None, 256 * 2**20):
        torch.manual_seed(0)
        model = cnn((1, 28, 28), 10)
        layers = Layers.of(model)
        world = AtDeadline(Mixture(users, len(layers), 0.9))
        engine = FusedEngine(model, layers)
        engine.chunk_bytes = chunk_bytes or engine.chunk_bytes
        problem, recipe = Problem(model, layers, shares), Recipe(lambda t: 0.1, engine=engine)
        simulation = Simulation(problem, method("salf"), world, recipe)
        with kept_memory():
            start = perf_counter()
            simulation.step()
            seconds = perf_counter() - start
        print(
            f"a round of {users:,} users in chunks of {engine.chunk_bytes / 2**20:.0f} MiB: "
            f"{seconds:.1f} s, {peak():.2f} GiB at most"
        )
        chunks = f"{users:,} users, chunks of {engine.chunk_bytes / 2**20:.0f} MiB"
        note(f"{chunks}: a round", seconds, "s")
        note(f"{chunks}: most memory", peak(), "GiB")
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    difference = (weights[0] - weights[1]).abs().max() / weights[0].abs().max()
    print(f"largest relative difference between the two: {difference:.1e}")


if __name__ == "__main__":
    main()
