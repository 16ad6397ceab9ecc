"""What a simulated round costs: the fused engine against a plain SGD step and the loop engine.

    python benchmarks/engines.py [--repeats N] [--models mlp,cnn,vgg11]

All sides take turns within each repetition and gather the same number of rows the same way; a
ratio is the median over the repetitions of the ratios within each, so that a busy machine slows
all sides alike. The plain step is `torch.optim.SGD` with momentum on the rows of all users at
once: what the round would cost if it were ordinary training. "Arithmetic" is the time the
multiplications and additions of the round would take at the speed of one large matrix product
here: what is left to gain by better kernels.
"""

import argparse
import copy
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from salf.data import Samples
from salf.depth import Mixture
from salf.engines import ENGINES
from salf.layers import Layers
from salf.methods import method
from salf.models import PAPER_MODELS
from salf.simulation import Batches, Simulation
from salf.worlds import AtDeadline

USERS, BATCH, LR, MOMENTUM = 30, 16, 0.01, 0.5
ROWS = 50_000  # of the data set, as many as MNIST and CIFAR-10 have to train on
SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "vgg11": (3, 32, 32)}
REPEATS = {"mlp": 300, "cnn": 60, "vgg11": 7}
# To reach: fused / plain at ratio 0 and 0.9 (at most), loop / fused at 0.9 (at least).
TARGETS = {
    ("mlp", 0.0): "≤ 1.3",
    ("mlp", 0.9): "loop ≥ 5x",
    ("cnn", 0.0): "≤ 1.1",
    ("cnn", 0.9): "≤ 0.75, loop ≥ 1.6x",
    ("vgg11", 0.0): "≤ 1.1",
    ("vgg11", 0.9): "≤ 0.65, loop ≥ 1.1x",
}


def federation(kind: str, model: nn.Module, samples: Samples, ratio: float) -> Simulation:
    layers = Layers.of(model)
    shares = np.array_split(np.arange(len(samples)), USERS)
    world = AtDeadline(Mixture(USERS, len(layers), ratio))
    engine = ENGINES[kind](model, layers)
    return Simulation(engine, method("salf"), world, samples, shares, lambda t: LR, MOMENTUM, BATCH)


def plain_step(model: nn.Module, samples: Samples) -> Callable[[], None]:
    """Ordinary training on all users' rows, drawn and gathered as the simulation does."""
    batches = Batches(np.array_split(np.arange(len(samples)), USERS), BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    rng = np.random.default_rng(0)

    def step() -> None:
        index = batches.draw(rng)
        inputs, labels = samples.rows(torch.from_numpy(index.reshape(-1)))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def arithmetic_seconds(step: Callable[[], object], flops_per_second: float) -> float:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / flops_per_second


def matrix_product_speed() -> float:
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(30):
        start = perf_counter()
        a @ a
        times.append(perf_counter() - start)
    return 2 * 1024**3 / median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, help="repetitions, instead of each model's own")
    parser.add_argument("--models", default=",".join(SHAPES), help="comma-separated")
    arguments = parser.parse_args()
    console = Console(width=120)  # the table does not fit into less
    speed = matrix_product_speed()
    table = Table(
        title=f"A round of {USERS} users x {BATCH} rows, {torch.get_num_threads()} threads; "
        f"matrix product {speed / 1e9:.0f} GFLOP/s"
    )
    columns = ["model", "stragglers", "fused / plain", "loop / fused", "to reach"]
    columns += ["plain ms", "fused ms", "arithmetic ms"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "to reach") else "right")
    rng = np.random.default_rng(0)
    for name in arguments.models.split(","):
        pixels = rng.integers(0, 256, (ROWS, *SHAPES[name]), dtype=np.uint8)
        labels = torch.from_numpy(rng.integers(0, 10, ROWS))
        samples = Samples(torch.from_numpy(pixels), labels)
        for ratio in (0.0, 0.9):
            start = PAPER_MODELS[name](SHAPES[name], 10)
            sides = {
                kind: federation(kind, copy.deepcopy(start), samples, ratio).step
                for kind in ("fused", "loop")
            }
            sides["plain"] = plain_step(copy.deepcopy(start), samples)
            times: dict[str, list[float]] = {side: [] for side in sides}
            repeats = arguments.repeats or REPEATS[name]
            for turn in track(
                range(repeats + 3), f"{name} {ratio:.0%}", console=console, transient=True
            ):
                for side, step in sides.items():
                    begin = perf_counter()
                    step()
                    if turn >= 3:  # the first ones warm up
                        times[side].append(perf_counter() - begin)
            fused_to_plain = median(
                f / p for f, p in zip(times["fused"], times["plain"], strict=True)
            )
            loop_to_fused = median(
                x / f for x, f in zip(times["loop"], times["fused"], strict=True)
            )
            # The arithmetic of a round depends on its depths: a mean over some rounds.
            least = np.mean([arithmetic_seconds(sides["fused"], speed) for _ in range(5)])
            table.add_row(
                name,
                f"{ratio:.0%}",
                f"{fused_to_plain:.2f}",
                f"{loop_to_fused:.1f}x",
                TARGETS[name, ratio],
                f"{median(times['plain']) * 1e3:.2f}",
                f"{median(times['fused']) * 1e3:.2f}",
                f"{least * 1e3:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
