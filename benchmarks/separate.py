"""What every user's own update costs: the fused engine's separate pass against its plain round.

    python benchmarks/separate.py [--repeats N] [--models mlp,cnn] [--stragglers 0,0.5]

Methods with memory, robust averages and compression need each user's update by itself. All sides
take turns within each repetition; a ratio is the median over the repetitions of the ratios within
each. "Separate" adds the updates up and does nothing else with them; MIFA also remembers them.
Times are processor times of all threads together, which other processes disturb less.
"""

import argparse
from statistics import median
from time import process_time

import numpy as np
import torch
from results import note
from rich.console import Console
from rich.table import Table

from engines import BATCH, LR, MOMENTUM, median_ratio, samples_of, start_of
from salf.common.process import kept_memory
from salf.core.aggregate import LayerwiseAggregate
from salf.core.layers import Layers
from salf.core.server import SGD
from salf.data import Partitioned, Samples
from salf.engines import engine as make_engine
from salf.methods import method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

USERS = 30


def federation(
    name: str, kind: str, model: str, samples: Samples, ratio: float, separate: bool = False
) -> Simulation:
    """Users of one method; `separate` users' updates are added one by one."""
    net = start_of(model)
    layers = Layers.of(net)
    parts = Partitioned(samples, np.array_split(np.arange(len(samples)), USERS))
    world = AtDeadline(Mixture(USERS, len(layers), ratio))
    recipe = Recipe(lambda t: LR, SGD(MOMENTUM), BATCH, engine=make_engine(kind, net, layers))
    made = Simulation(Problem(net, layers, parts), method(name), world, recipe)
    if separate:
        made.pipeline.open = lambda *_: LayerwiseAggregate(layers, made.engine.weights, True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--models", default="mlp,cnn", help="comma-separated")
    parser.add_argument("--stragglers", default="0,0.5", help="comma-separated")
    arguments = parser.parse_args()
    table = Table(title=f"Rounds of {USERS} users, {torch.get_num_threads()} threads")
    columns = ["model", "stragglers", "SALF ms", "separate / SALF", "loop / SALF", "MIFA / FedAvg"]
    for column in columns:
        table.add_column(column, justify="right")
    for model in arguments.models.split(","):
        samples = samples_of(model)
        for ratio in map(float, arguments.stragglers.split(",")):
            sides = {
                "salf": federation("salf", "fused", model, samples, ratio),
                "separate": federation("salf", "fused", model, samples, ratio, True),
                "loop": federation("salf", "loop", model, samples, ratio, True),
                "fedavg": federation("fedavg", "fused", model, samples, ratio),
                "mifa": federation("mifa", "fused", model, samples, ratio),
            }
            times: dict[str, list[float]] = {side: [] for side in sides}
            with kept_memory():
                for turn in range(arguments.repeats + 2):
                    for side, simulation in sides.items():
                        begin = process_time()
                        simulation.step()
                        if turn >= 2:  # the first ones warm up
                            times[side].append(process_time() - begin)
            for a, b in (("separate", "salf"), ("loop", "salf"), ("mifa", "fedavg")):
                value = median_ratio(times[a], times[b])
                note(f"{model}, {ratio:.0%} stragglers: {a} / {b}", value, "")
            table.add_row(
                model,
                f"{ratio:.0%}",
                f"{median(times['salf']) * 1e3:.2f}",
                f"{median_ratio(times['separate'], times['salf']):.2f}",
                f"{median_ratio(times['loop'], times['salf']):.1f}",
                f"{median_ratio(times['mifa'], times['fedavg']):.2f}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
