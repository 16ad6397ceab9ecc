"""What a simulated clock costs: a round on a fleet against the same round without a clock.

    python benchmarks/clock.py [--repeats N]

Without a clock, users' depths are drawn from the law that follows from the fleet and the deadline.
Prints the median over repetitions of the ratio of the two, measured in turn; and how long a fleet
of a million devices takes to make.
"""

import argparse
from statistics import median
from time import perf_counter

import numpy as np
import torch
from results import note

import salf
from salf.runs.config import Config
from salf.runs.federation import Given, from_config
from salf.simulation import Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import PerUser
from salf.worlds.fleet.world import OnFleet

ROUNDS, WARM_UP = 20, 20


def law_of(simulation: Simulation) -> AtDeadline:
    world, users = simulation.world, np.arange(simulation.world.users)
    assert isinstance(world, OnFleet)
    reach = world.reach(1, users, simulation.memory)  # [L, users], falling towards layer 1
    sure = np.vstack([reach, np.ones(len(users))])
    return AtDeadline(PerUser(np.diff(sure, axis=0, prepend=0.0).T))


def seconds(simulation: Simulation) -> float:
    start = perf_counter()
    for _ in range(ROUNDS):
        simulation.step()
    return (perf_counter() - start) / ROUNDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("| model | fleet | with a clock / without | ms with | ms without |")
    print("|---|---|---|---|---|")
    for model, deadline in (("mlp", 0.06), ("cnn", 0.025)):
        config = Config(
            data="mnist", model=model, fleet="phones", deadline=deadline, threads=1, method="salf"
        )
        timed = from_config(config).simulation
        plain = from_config(config, Given(world=law_of(timed))).simulation
        for simulation in (timed, plain):
            for _ in range(WARM_UP):
                simulation.step()
        pairs = [(seconds(timed), seconds(plain)) for _ in range(repeats)]
        ratio = median(a / b for a, b in pairs)
        with_clock, without = (1000 * median(each) for each in zip(*pairs, strict=True))
        note(f"{model} on phones: with a clock / without", ratio, "")
        print(f"| {model} | phones | {ratio:.3f} | {with_clock:.2f} | {without:.2f} |")
    start = perf_counter()
    fleet = salf.Fleet("phones", users=1_000_000)
    seconds_made = perf_counter() - start
    note(f"{len(fleet):,} devices made", seconds_made, "s")
    print(f"\n{len(fleet):,} devices made in {seconds_made:.1f} s")


if __name__ == "__main__":
    main()
