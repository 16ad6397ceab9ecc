"""A million registered users, a thousand of them a round, each with data of its own.

    python benchmarks/users.py [--users N] [--cohort K] [--rounds T]

User u's data are a function of u: 5 to 60 MNIST-sized images, so batches of 16 are of unequal size.
For each method, in a process of its own: the seconds from the call of `salf.train` to the end of
round 1, the median seconds of the later rounds, and the largest memory the process ever had.
"""

import argparse
import multiprocessing
import resource
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np
import torch
from results import note
from torch import nn

import salf
from salf.models import mlp

METHODS = ("salf", "fedavg", "asyncfl")


def data_of(user: int) -> tuple[np.ndarray, np.ndarray]:
    """A user's images and labels."""
    rng = np.random.default_rng(user)
    size = int(rng.integers(5, 61))
    return rng.integers(0, 256, (size, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, size)


def measure(method: str, users: int, cohort: int, rounds: int) -> tuple[float, float, float]:
    torch.manual_seed(0)
    times = [perf_counter()]

    def note(row: salf.Row, model: nn.Module) -> None:
        times.append(perf_counter())

    salf.train(
        mlp((1, 28, 28), 10),
        data_of,
        method=method,
        users=users,
        cohort=cohort,
        weigh="samples",
        rounds=rounds,
        stragglers=0.5,
        on_round=note,
    )
    seconds = np.diff(times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB, from KiB
    return float(seconds[0]), median(seconds[1:]), peak


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args(arguments)
    print(f"{given.users:,} users, {given.cohort:,} a round, {torch.get_num_threads()} threads")
    for method in METHODS:
        # A process of its own, because the largest memory of a process never falls.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            task = (method, given.users, given.cohort, given.rounds)
            start, later, peak = pool.apply(measure, task)
        note(f"{given.users:,} users, {method}: first round after", start, "s")
        note(f"{given.users:,} users, {method}: a round", later, "s")
        note(f"{given.users:,} users, {method}: most memory", peak, "GiB")
        print(
            f"{method:8} first round after {start:.1f} s, then {later:.2f} s a round, "
            f"{peak:.2f} GiB at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
