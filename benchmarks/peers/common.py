"""What every side of the comparison shares: the jobs, the networks, the data and the report.

Needs torch and numpy only, because it is imported in the environment of every peer.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Job:
    """What is trained: every user takes part with the same number of samples and local steps."""

    title: str
    users: int
    cohort: int
    batch: int
    rate: float
    rounds: int
    epochs: int = 0  # 0: one step on one random batch


JOBS = {
    "images": Job(
        "1,000 users x 50 images 32x32x3, 50 a round, one epoch in batches of 10, 1.6 M weights",
        users=1000, cohort=50, batch=10, rate=0.1, rounds=6, epochs=1,
    ),
    "mlp": Job("30 users, MNIST, MLP, one step of 16 rows", 30, 30, 16, 0.1, 150),
    "cnn": Job("30 users, MNIST, CNN, one step of 16 rows", 30, 30, 16, 0.1, 150),
}  # fmt: skip


def network(name: str) -> nn.Sequential:
    """The model of a job: the same weights in every process."""
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(),
            nn.Linear(16, 10),
        )  # fmt: skip
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


class Data:
    """The images of a job as bytes, and which of them each user has."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self.images, self.labels, self.test_images, self.test_labels = (
                torch.from_numpy(arrays[name])
                for name in ("images", "labels", "test_images", "test_labels")
            )
            self.parts = arrays["parts"]  # [users, samples]

    def rows(self, indices: Any) -> tuple[Tensor, Tensor]:
        index = torch.as_tensor(indices)
        return scaled(self.images[index]), self.labels[index]

    def of_user(self, user: int, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """A user's samples in a new random order; so many of them, or all."""
        return self.rows(np.random.permutation(self.parts[user])[:rows])


def scaled(images: Tensor) -> Tensor:
    return images.float().mul_(2 / 255).sub_(1)


def batches(job: Job, data: Data, user: int) -> list[tuple[Tensor, Tensor]]:
    """What a user trains on in a round."""
    inputs, labels = data.of_user(user, None if job.epochs else job.batch)
    return list(zip(inputs.split(job.batch), labels.split(job.batch), strict=True))


@torch.no_grad()
def tested(model: nn.Module, data: Data) -> dict[str, float]:
    """The accuracy and the loss on the test images."""
    model.eval()
    found = torch.cat([model(scaled(part)) for part in data.test_images.split(100)])
    right = (found.argmax(1) == data.test_labels).float().mean()
    return {"accuracy": float(right), "loss": float(F.cross_entropy(found, data.test_labels))}


class Side:
    """One run of one side: reads what to do, counts rounds, and reports on standard output.

    Standard output is kept for the report alone: what a peer prints goes to standard error.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.name, self.seed = os.environ["PEER_JOB"], int(os.environ["PEER_SEED"])
        self.job = JOBS[self.name]
        self.rounds = int(os.environ["PEER_ROUNDS"])
        self._launched = float(os.environ["PEER_LAUNCHED"])
        self.file = Path(os.environ["PEER_DATA"])
        self._ends: list[float] = []

    def start(self) -> tuple[Job, nn.Sequential, Data]:
        """The job, its model and its data; random numbers are drawn from the seed from here on."""
        model = network(self.name)
        torch.manual_seed(self.seed)
        np.random.seed(self.seed)  # which every peer draws from
        return self.job, model, Data(self.file)

    def round_done(self, *_: Any) -> None:
        self._ends.append(time.time())

    def report(self, model: nn.Module, data: Data, **notes: Any) -> None:
        """Print the result: the first round counts as part of the start-up."""
        seconds = np.diff(self._ends).tolist()
        found = {
            "seconds": seconds,
            "startup": self._ends[0] - self._launched - median(seconds),
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **tested(model, data),
            "rounds": len(self._ends),
            **notes,
        }
        self._out.write(json.dumps(found) + "\n")
        self._out.flush()


def run_side(main: Callable[[Side], None]) -> None:
    """Run a side as a script; its last word is the report."""
    side = Side()
    main(side)
    sys.stdout.flush()
