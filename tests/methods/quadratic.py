"""Users with the loss (w - a)^2 / 2 of one parameter w, whose steps are worked out by hand."""

import numpy as np
import torch
from torch import nn

from salf.core.server import SGD
from salf.data import Partitioned, Samples
from salf.data.sampling import LocalWork
from salf.engines import ENGINES
from salf.methods import method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import Recorded
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet

COST = Cost(forward=np.array([0.0]), backward=np.array([1.0]), bytes=np.array([0.0]))


def half_square(outputs, targets):
    return 0.5 * (outputs[:, 0] - targets) ** 2


def network(start=0.0):
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    return nn.Sequential(model)


def simulation(name, targets, world, rate, steps=1, engine="loop", client_rate=None, **options):
    """Users with these targets a; their gradient at w is w - a."""
    model, users = network(), len(targets)
    samples = Samples(torch.ones(users, 1).double(), torch.tensor(targets).double())
    problem = Problem.of(model, Partitioned(samples, [np.array([u]) for u in range(users)]))
    recipe = Recipe(
        lambda t: rate,
        SGD(0.0),
        batch_size=1,
        local=LocalWork(steps, rate=client_rate),
        engine=ENGINES[engine](model, problem.layers, half_square),
    )
    return Simulation(problem, method(name, **options), world, recipe)


def recorded(depths, steps):
    """A world of one layer in which all rounds are alike: users' depths in their last steps."""
    rounds, users = 1000, np.arange(len(depths))
    return Recorded(
        len(depths),
        [users] * rounds,
        [np.array(depths)] * rounds,
        [np.zeros(1)] * rounds,
        [np.array(steps)] * rounds,
    )


def on_fleet(seconds, steps=1):
    """Users that take so many seconds for a local step, without links or jitter."""
    devices = Fleet.of([1 / each for each in seconds])
    timing = Timing(
        devices,
        COST,
        lambda users: np.ones(len(users), np.int64),
        lambda users: np.full(len(users), steps),
    )
    return OnFleet(timing, None)


def weight(sim):
    return sim.engine.weights["0.weight"].item()


def after(sim, rounds):
    """The parameter after each round."""
    found = []
    for _ in range(rounds):
        sim.step()
        found.append(weight(sim))
    return found
