"""The jobs that all peers run, and how each reports. It needs numpy and torch only.

Data are made up: ten prototypes and noise, so that they can be learnt and nothing is downloaded.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BEGUN = time.perf_counter()


@dataclass(frozen=True)
class Job:
    """A federation: all peers train the same network on the same users' data."""

    users: int
    cohort: int
    samples: int  # of each user
    batch: int
    steps: int  # local ones in a round; with as many batches as a user has, an epoch
    shape: tuple[int, ...]
    rate: float
    rounds: int  # that are timed, after one that is not


JOBS = {
    # The one that pfl publishes its speed with.
    "pfl": Job(1000, 50, 50, 10, 5, (3, 32, 32), 0.1, 3),
    # One round of the paper's experiments: all users, one step.
    "mlp": Job(30, 30, 1666, 16, 1, (1, 28, 28), 0.05, 200),
    "cnn": Job(30, 30, 1666, 16, 1, (1, 28, 28), 0.1, 30),
}


def network(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    if name == "mlp":
        sizes = (784, 32, 16, 10)
        layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
        return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    if name == "cnn":
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10)),
        )
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def data(job: Job, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels; the prototypes do not depend on the seed."""
    prototypes = np.random.default_rng(0).standard_normal((10, *job.shape), np.float32)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    inputs = rng.standard_normal((count, *job.shape), np.float32)
    inputs += prototypes[labels]
    return inputs, labels


def training_data(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """User u has the samples from u * job.samples on."""
    return data(job, job.users * job.samples, 1)


def test_data(job: Job) -> tuple[np.ndarray, np.ndarray]:
    return data(job, 1000, 2)


class Rounds:
    """A stopwatch: call it after every round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, *_: object) -> None:
        self.ends.append(time.perf_counter())

    def report(self, model: nn.Module, job: Job) -> None:
        """Print what the driver reads."""
        inputs, labels = (torch.from_numpy(array) for array in test_data(job))
        model.eval()
        with torch.no_grad():
            accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
        took = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        usual = statistics.fmean(took)
        found = {
            "rounds_per_second": 1 / usual,
            "start_up": self.ends[0] - BEGUN - usual,
            "accuracy": accuracy,
            "rounds": len(self.ends),
        }
        print("RESULT", json.dumps(found), flush=True)


def asked() -> tuple[str, Job, float, int]:
    """The job, the ratio of stragglers and the number of threads of the command line."""
    name, stragglers, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    return name, JOBS[name], stragglers, threads
