"""How time and memory grow with the size of a federation.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--only NAMES] [--quick]
                                                  [--out FILE.json] [--figure FILE]

Each point is measured in a process of its own: the median seconds of a round, of the processor if
there is one thread, and the largest memory of the process less what it had before. A slope is that
of the straight line through the larger half of a series, log over log: 1 where the work is linear,
0 where it does not depend on the size. `to` is the largest it should be; a slope above it is
marked.
"""

import argparse
import gc
import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from results import note
from rich.console import Console
from rich.table import Table
from torch import nn

from salf.common.figures import Axis, Figure, Line, Lines, Point, ordered
from salf.common.files import write_all
from salf.common.pictures import pictures
from salf.common.process import kept_memory
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.data.sampling import Cohort, LocalWork
from salf.data.users_data import DrawnPartition
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Update, encode
from salf.methods import method
from salf.models import PAPER_MODELS
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

SHAPE, BATCH, SAMPLES = (1, 28, 28), 16, 60_000
LINEAR, NOTHING = 1.05, 0.1  # the largest slopes where work is proportional, or does not depend
BUDGET, FEWEST, MOST = 3.0, 2, 30  # seconds of one point, and how many rounds these may be

Round = Callable[[], object]


def paper(name: str) -> nn.Module:
    torch.manual_seed(0)
    return PAPER_MODELS[name](SHAPE, 10)


def chain(layers: int) -> nn.Module:
    """So many linear layers."""
    torch.manual_seed(0)
    inner = [each for _ in range(layers - 2) for each in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), *inner, nn.Linear(64, 10))


def simulated(
    model: nn.Module, users: int, registered: int = 0, steps: int = 1, stragglers: float = 0.5
) -> Round:
    """A round of SALF; of FedAvg where there are several local steps."""
    rng, registered = np.random.default_rng(0), registered or users
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, *SHAPE), dtype=np.uint8))
    samples = Samples(pixels, torch.from_numpy(rng.integers(0, 10, SAMPLES)))
    layers = Layers.of(model, example=samples.rows(torch.arange(BATCH))[0])
    # Users share samples, so that a million of them have some.
    data = Partitioned(samples, DrawnPartition(registered, SAMPLES, 64, key=0))
    world = AtDeadline(Mixture(registered, len(layers), stragglers if steps == 1 else 0.0))
    recipe = Recipe(
        lambda t: 0.01, batch_size=BATCH, local=LocalWork(steps), cohort=Cohort(registered, users)
    )
    problem = Problem(model, layers, data, example=samples.rows(torch.arange(BATCH))[0])
    return Simulation(problem, method("salf" if steps == 1 else "fedavg"), world, recipe).step


def live(model: nn.Module, users: int, rule: str) -> Round:
    """A round at the server: every user's update, as bytes, and the step."""
    server = LiveServer(Problem.of(model), 0.01, ServerSettings(robust=rule, tolerate=1))
    rng = np.random.default_rng(0)
    names = [f"user-{number}" for number in range(users)]
    depths = rng.integers(1, len(server.layers) + 1, users)
    times: list[float] = []

    def one() -> float:
        sent = []
        for depth in depths:
            due = [each for layer in list(server.layers)[depth - 1 :] for each in layer.parameters]
            tensors = {each: torch.randn(server.weights[each].shape) for each in due}
            sent.append(encode(Update(int(depth), tensors)))
        begin = now()
        server.open(names)
        for name, data in zip(names, sent, strict=True):
            server.take(name, data)
        server.close()
        times.append(now() - begin)
        return times[-1]

    return one


@dataclass(frozen=True)
class Series:
    """What grows, at which sizes, and the round of one size."""

    title: str
    sizes: Sequence[int]
    of: Callable[[int], Round]
    to: float = LINEAR


def sizes(first: int, last: int) -> list[int]:
    """About two in each factor of ten."""
    count = round(2 * math.log10(last / first)) + 1
    return sorted({round(each) for each in np.geomspace(first, last, count)})


SERIES = {
    "users-mlp": Series(
        "users a round, MLP", sizes(10, 100_000), lambda n: simulated(paper("mlp"), n)
    ),
    "users-cnn": Series(
        "users a round, CNN", sizes(10, 10_000), lambda n: simulated(paper("cnn"), n)
    ),
    "registered": Series(
        "registered users, 100 a round",
        sizes(1_000, 1_000_000),
        lambda n: simulated(paper("mlp"), 100, n),
        NOTHING,
    ),
    "layers": Series(
        "layers of an MLP, 30 users", sizes(3, 100), lambda n: simulated(chain(n), 30)
    ),
    "steps-mlp": Series(
        "local steps, MLP, 30 users", [2, 5, 10, 20, 50],
        lambda n: simulated(paper("mlp"), 30, steps=n),
    ),
    "steps-cnn": Series(
        "local steps, CNN, 30 users", [2, 5, 10, 20],
        lambda n: simulated(paper("cnn"), 30, steps=n),
    ),
    **{
        f"live-{rule}": Series(
            f"live users at the server, robust {rule}",
            [10, 30, 100, 200, 500, 1_000],
            lambda n, rule=rule: live(paper("mlp"), n, rule),  # type: ignore[misc]
        )
        for rule in ("none", "mixed", "median")
    },
}  # fmt: skip


def now() -> float:
    return process_time() if torch.get_num_threads() == 1 else perf_counter()


def memory(field: str) -> int:
    """Bytes: VmRSS of this process now, or VmHWM, the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(name: str, size: int, threads: int) -> tuple[float, float]:
    """The seconds of a round, and the bytes that the process came to need."""
    torch.set_num_threads(threads)
    gc.collect()
    before = memory("VmRSS")
    with kept_memory():
        step = SERIES[name].of(size)
        times: list[float] = []
        for turn in range(MOST + 1):
            begin = now()
            own = step()
            took = own if isinstance(own, float) else now() - begin
            if turn:  # the first one warms up
                times.append(took)
            if len(times) >= FEWEST and sum(times) > BUDGET:
                break
    return median(times), memory("VmHWM") - before


def slope(points: Sequence[tuple[int, float]]) -> float:
    """That of the line through the larger half of the points, log over log."""
    half = points[len(points) // 2 - 1 :]
    x, y = np.log([each for each, _ in half]), np.log([each for _, each in half])
    return float(np.polyfit(x, y, 1)[0])


def measured(names: Sequence[str], quick: bool) -> Iterator[tuple[str, list[dict[str, float]]]]:
    context = multiprocessing.get_context("fork")  # torch is loaded already
    threads = torch.get_num_threads()
    for name in names:
        found = []
        for size in SERIES[name].sizes[: -2 if quick else None]:
            with context.Pool(1) as pool:
                seconds, grown = pool.apply(measure, (name, size, threads))
            found.append({"size": size, "seconds": seconds, "bytes": grown})
            print(f"{name} {size:,}: {seconds * 1e3:.2f} ms, {grown / 2**20:.0f} MiB", flush=True)
        yield name, found


def draw(result: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Time and memory of every series, log over log, as PNG and SVG; live ones apart."""
    charts, live = [], [name for name in result if name.startswith("live")]
    for names in ([name for name in result if name not in live], live):
        colours = zip(names, ordered(len(names)), strict=True)
        lines = [Line(SERIES[name].title, colour) for name, colour in colours]
        for what, key, unit in (("seconds a round", "seconds", 1), ("memory, MiB", "bytes", 2**20)):
            points = [
                Point(SERIES[name].title, each["size"], each[key] / unit)
                for name in names
                for each in result[name]
                if each[key] > 0
            ]
            x, y = Axis("size", log=True), Axis(what, log=True)
            charts += [Lines(points, lines, x, y, height=240)] if points else []
    write_all(pictures(Figure(charts), path.with_suffix("")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SERIES), help="comma-separated")
    parser.add_argument("--quick", action="store_true", help="without the two largest sizes")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--figure", type=Path, help="where the figure goes, as PNG and SVG")
    given = parser.parse_args()
    result: dict[str, Any] = {}
    table = Table(title=f"Growth, {torch.get_num_threads()} threads", title_justify="left")
    for column in ("", "sizes", "ms", "slope", "to", "memory MiB", "slope of memory"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in measured(given.only.split(","), given.quick):
        series, result[name] = SERIES[name], found
        first, last = found[0], found[-1]
        time = slope([(each["size"], each["seconds"]) for each in found])
        # Of a few MiB the size of the process decides.
        large = [(each["size"], each["bytes"]) for each in found if each["bytes"] > 2**23]
        grows = f"{slope(large):.2f}" if len(large) > 2 else ""
        note(f"{series.title}: slope of time", time, "", f"≤ {series.to:g}")
        note(f"{series.title}: {last['size']:,}", last["seconds"] * 1e3, "ms")
        note(f"{series.title}: {last['size']:,}, memory", last["bytes"] / 2**20, "MiB")
        table.add_row(
            series.title,
            f"{first['size']:,} to {last['size']:,}",
            f"{first['seconds'] * 1e3:.2f} to {last['seconds'] * 1e3:.2f}",
            f"{time:.2f}{' !' if time > series.to else ''}",
            f"{series.to:g}",
            f"{first['bytes'] / 2**20:.0f} to {last['bytes'] / 2**20:.0f}",
            grows,
        )
        if given.out is not None:
            given.out.write_text(json.dumps(result, indent=1) + "\n")
    Console(width=120).print(table)
    if given.figure is not None:
        draw(result, given.figure)


if __name__ == "__main__":
    main()
