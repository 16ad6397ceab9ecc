"""What a simulated round costs: the fast engines against a plain SGD step and the loop engine.

    python benchmarks/engines.py [--repeats N] [--models mlp,cnn,vgg11,residual-batchnorm,...]

All sides take turns within each repetition and gather the same number of rows the same way; a
ratio is the median over the repetitions of the ratios within each, so that a busy machine slows
all sides alike. The plain step is `torch.optim.SGD` with momentum on the rows of all users at
once: what the round would cost if it were ordinary training. It runs in a process of its own, as
PyTorch runs by default, while rounds keep freed memory as `salf run` does (salf/common/process.py).
"Arithmetic" is the time the multiplications and additions of the round would take at the speed of
one large matrix product here: what is left to gain by better kernels.
"""

import argparse
import copy
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter, sleep

import numpy as np
import torch
from results import note
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from salf.common.process import kept_memory
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.core.server import SGD
from salf.data import Partitioned, Samples
from salf.data.sampling import Batches
from salf.methods import method
from salf.models import PAPER_MODELS
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

BATCH, LR, MOMENTUM = 16, 0.01, 0.5
ROWS = 50_000  # of the data set, as many as MNIST and CIFAR-10 have to train on


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        stride = outputs // inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.around = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.relu(self.around(value) + self.body(value))


class ResidualNet(nn.Module):
    """Seven convolutions in three blocks, of 16, 32 and 64 channels."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16)
        self.blocks = nn.Sequential(
            Residual(16, 16, norm), Residual(16, 32, norm), Residual(32, 64, norm)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.blocks(F.relu(self.norm(self.stem(value))))
        return self.head(value.mean((2, 3)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Two encoder layers on the 32 rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(96, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.embed(value.transpose(1, 2).flatten(2))
        return self.head(self.encoder(value).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM that reads a picture row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(28, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(value[:, 0])[0][:, -1])  # type: ignore[no-any-return]


class PoolAndFlatten(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.mean((2, 3))


def as_sequential(net: ResidualNet) -> nn.Sequential:
    return nn.Sequential(net.stem, net.norm, nn.ReLU(), *net.blocks, PoolAndFlatten(), net.head)


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


PICTURE, DIGIT = (3, 32, 32), (1, 28, 28)
OWN: dict[str, Callable[[], nn.Module]] = {
    "residual-batchnorm": lambda: ResidualNet(nn.BatchNorm2d),
    "residual-groupnorm": lambda: ResidualNet(group_norm),
    "blocks-batchnorm": lambda: as_sequential(ResidualNet(nn.BatchNorm2d)),
    "blocks-groupnorm": lambda: as_sequential(ResidualNet(group_norm)),
    "transformer": Transformer,
    "lstm": Recurrent,
}
SHAPES = {"mlp": DIGIT, "cnn": DIGIT, "vgg11": PICTURE}
SHAPES |= {name: DIGIT if name == "lstm" else PICTURE for name in OWN}
REPEATS = {"mlp": 40, "cnn": 30, "vgg11": 7, "transformer": 15, "lstm": 30}
# Steps in one turn, of which the median counts: a step of a millisecond must not be the first one
# after another process had the cores.
STEPS = {"mlp": 15, "cnn": 3}
PAUSE = 0.01  # seconds between turns, for OpenMP's threads of the other process to fall asleep
# To reach: fast / plain (at most) and loop / fast (at least), at each share of stragglers.
TARGETS = {
    ("mlp", 0.0): "≤ 1.15",
    ("mlp", 0.9): "loop ≥ 5x",
    ("cnn", 0.0): "≤ 0.8",
    ("cnn", 0.9): "≤ 0.75, loop ≥ 1.6x",
    ("vgg11", 0.0): "≤ 1.1",
    ("vgg11", 0.9): "≤ 0.65, loop ≥ 1.1x",
    **{(name, 0.5): "≤ 1.25" for name in OWN},
}


def users_of(name: str) -> int:
    return 100 if name in OWN else 30


def start_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return OWN[name]() if name in OWN else PAPER_MODELS[name](SHAPES[name], 10)


def samples_of(name: str) -> Samples:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (ROWS, *SHAPES[name]), dtype=np.uint8)
    return Samples(torch.from_numpy(pixels), torch.from_numpy(rng.integers(0, 10, ROWS)))


def federation(
    kind: str, model: nn.Module, samples: Samples, ratio: float, users: int
) -> Simulation:
    example, _ = samples.rows(torch.arange(BATCH))
    layers = Layers.of(model, example=example)
    shares = Partitioned(samples, np.array_split(np.arange(len(samples)), users))
    world = AtDeadline(Mixture(users, len(layers), ratio))
    recipe = Recipe(lambda t: LR, SGD(MOMENTUM), BATCH, engine=kind)
    return Simulation(
        Problem(model, layers, shares, example=example), method("salf"), world, recipe
    )


def plain_step(model: nn.Module, samples: Samples, users: int) -> Callable[[], None]:
    """Ordinary training on all users' rows, drawn and gathered as the simulation does."""
    shares = Partitioned(samples, np.array_split(np.arange(len(samples)), users))
    batches, everybody, rounds = Batches(shares, BATCH), np.arange(users), count(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

    def step() -> None:
        inputs, labels = batches.of_round(Keyed(0, next(rounds)), everybody)(everybody)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], object], steps: int) -> float:
    """The median of some steps."""
    times = []
    for _ in range(steps):
        begin = perf_counter()
        step()
        times.append(perf_counter() - begin)
    return median(times)


def serve_plain_steps(name: str, threads: int, asked: Connection) -> None:
    torch.set_num_threads(threads)
    step = plain_step(start_of(name), samples_of(name), users_of(name))
    while steps := asked.recv():
        asked.send(seconds(step, steps))


@contextmanager
def plain_process(name: str) -> Iterator[Callable[[int], float]]:
    """What measures plain steps in another process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (name, torch.get_num_threads(), there)
    process = context.Process(target=serve_plain_steps, args=arguments, daemon=True)
    process.start()

    def measure(steps: int) -> float:
        here.send(steps)
        return float(here.recv())

    try:
        yield measure
    finally:
        here.send(0)
        process.join()


def measured(
    name: str, fast: Simulation, loop: Simulation, plain: Callable[[int], float], repeats: int
) -> dict[str, list[float]]:
    """The seconds of a step of every side, in each repetition."""
    sides: dict[str, Callable[[int], float]] = {
        "fast": lambda steps: seconds(fast.step, steps),
        "loop": lambda steps: seconds(loop.step, 1),  # its steps are long enough
        "plain": plain,
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(repeats + 2):
        for side, measure in sides.items():
            sleep(PAUSE)
            found = measure(STEPS.get(name, 1))
            if turn >= 2:  # the first ones warm up
                times[side].append(found)
    return times


def median_ratio(a: list[float], b: list[float]) -> float:
    return median(x / y for x, y in zip(a, b, strict=True))


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
        title=f"A round of {BATCH} rows a user, {torch.get_num_threads()} threads; "
        f"matrix product {speed / 1e9:.0f} GFLOP/s"
    )
    columns = ["model", "users", "stragglers", "engine", "fast / plain", "loop / fast", "to reach"]
    columns += ["plain ms", "fast ms", "arithmetic ms"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "to reach") else "right")
    for name in track(arguments.models.split(","), console=console, transient=True):
        samples, users, start = samples_of(name), users_of(name), start_of(name)
        for ratio in (0.5,) if name in OWN else (0.0, 0.9):
            fast = federation("auto", copy.deepcopy(start), samples, ratio, users)
            loop = federation("loop", copy.deepcopy(start), samples, ratio, users)
            repeats = arguments.repeats or REPEATS.get(name, 7)
            with kept_memory(), plain_process(name) as plain:
                times = measured(name, fast, loop, plain, repeats)
            # The arithmetic of a round depends on its depths: a mean over some rounds.
            least = np.mean([arithmetic_seconds(fast.step, speed) for _ in range(5)])
            plainly = median_ratio(times["fast"], times["plain"])
            looped = median_ratio(times["loop"], times["fast"])
            what, to = f"{name}, {ratio:.0%} stragglers: ", TARGETS[name, ratio].split(", loop")
            note(f"{what}a round", 1e3 * median(times["fast"]), "ms")
            note(f"{what}round / plain step", plainly, "", to[0] if "loop" not in to[0] else "")
            note(f"{what}loop / round", looped, "", TARGETS[name, ratio].partition("loop ")[2])
            table.add_row(
                name,
                f"{users}",
                f"{ratio:.0%}",
                fast.engine.name,
                f"{plainly:.2f}",
                f"{looped:.1f}x",
                TARGETS[name, ratio],
                f"{median(times['plain']) * 1e3:.2f}",
                f"{median(times['fast']) * 1e3:.2f}",
                f"{least * 1e3:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
