"""Users spread over processes: the same bits with any number of them, whatever happens to one."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from nets import small_mlp, small_normed
from reference import assert_same, data, equal_shares, server_of
from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.core.local import Local
from salf.data import Partitioned, Samples
from salf.data.sampling import LocalWork
from salf.engines.base import LoopEngine, Network
from salf.methods import method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.stages.pipeline import Stages
from salf.stages.robust import Robust
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

USERS, SIZE, SEVERAL = 6, 8, LocalWork(steps=3)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="workers are forked, which needs Linux"
)


class Dying(nn.Module):
    """A layer that ends the worker it runs in, or raises an error there."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def forward(self, value):
        if multiprocessing.parent_process() is not None:
            if self.error is not None:
                raise self.error
            os.kill(os.getpid(), signal.SIGKILL)
        return value


def with_dropout(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), *more, nn.Linear(8, 3))


def simulation(workers, make=with_dropout, name="salf", local=SEVERAL, shape=(4,), robust=None):
    samples = Samples(*data(USERS, SIZE, shape, dtype=next(make().parameters()).dtype))
    problem = Problem.of(make(), Partitioned(samples, equal_shares(USERS, SIZE)))
    rule = method(name)
    recipe = Recipe(lambda t: 0.1, server_of(rule, 0.5), 3, local)
    world = AtDeadline(Mixture(USERS, len(problem.layers), 0.6))
    made = Simulation(problem, rule, world, recipe, Stages(robust), seed=1)
    made.engine.workers = workers
    return made


def trained(made, rounds=4):
    losses = [made.step().train_loss for _ in range(rounds)]
    return made.engine.weights | {"losses": torch.tensor(losses)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"make": small_normed, "shape": (2, 4, 4)},
        {"make": small_normed, "shape": (2, 4, 4), "name": "heterofl"},
        {"make": small_mlp, "name": "asyncfl"},
        {"name": "scaffold"},
        {"robust": Robust("median", 1)},
    ],
    ids=["dropout", "batch norm", "narrow", "old models", "states", "every user's own update"],
)
def test_the_number_of_workers_does_not_change_the_result(options):
    alone = trained(simulation(1, **options))
    for workers in (2, 3):
        assert_same(trained(simulation(workers, **options)), alone)


def test_a_worker_that_dies_is_replaced_and_its_users_are_computed_again():
    made = simulation(2)
    made.step()
    killed = [worker.process for worker in made.engine.crew.workers]
    os.kill(killed[0].pid, signal.SIGKILL)
    found = trained(made, 3)
    assert made.engine.crew.workers[0].process is not killed[0]
    wanted = simulation(1)
    wanted.step()
    assert_same(found, trained(wanted, 3))


def test_a_user_that_ends_every_worker_is_an_error():
    with pytest.raises(SalfError, match=r"computes user \d died 3 times"):
        simulation(2, lambda: with_dropout(Dying())).step()


def test_an_error_in_a_worker_is_raised_and_the_workers_end():
    made = simulation(2, lambda: with_dropout(Dying(ValueError("no such class"))))
    with pytest.raises(ValueError, match="no such class"):
        made.step()
    assert not made.engine.crew.workers
    assert not multiprocessing.active_children()


def test_workers_end_with_the_engine():
    made = simulation(2)
    made.step()
    workers = [worker.process for worker in made.engine.crew.workers]
    del made
    assert not any(process.is_alive() for process in workers)


class Interrupting(nn.Module):
    """A layer that sends Ctrl-C to the whole group of processes, as a terminal does."""

    def forward(self, value):
        if multiprocessing.parent_process() is not None:
            os.killpg(0, signal.SIGINT)
            time.sleep(60)
        return value


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_at_once():
    """In the middle of a round, in a process of its own; none of its group is left."""
    code = (
        "import signal, test_spread as s\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "made = s.simulation(2, lambda: s.with_dropout(s.Interrupting()))\n"
        "try: made.step()\n"
        "except KeyboardInterrupt: print(s.multiprocessing.active_children(), flush=True)\n"
    )
    folders = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__)), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.communicate(timeout=50)[0] == b"[]\n"
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(process.pid, 0)


def test_small_rounds_start_no_workers():
    made = simulation(0)
    trained(made)
    assert not made.engine.crew.workers


def test_what_a_user_draws_depends_on_nobody_else():
    """Dropout of a user alone in a round is that of the user among others."""
    made = simulation(1)
    engine, draws = made.engine, Keyed(1, 1)
    network = Network(engine.weights, Local(0.1), draws=draws)

    def update(users):
        rows = made.batches.of_round(draws, np.array(users))
        return [engine.user(np.array([u]), 3, 1, network, rows)[0] for u in users][-1]

    assert_same(update([0, 1, 2]), update([2]))
    assert not torch.equal(update([1])["0.weight"], update([2])["0.weight"])


@pytest.mark.parametrize(("users", "most", "count"), [(20, 1, 20), (64, 2, 32), (10_000, 32, 313)])
def test_pieces_are_few_in_a_small_round_and_enough_for_many_cores_in_a_large_one(
    users, most, count
):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    engine = LoopEngine(model, Layers.of(model))
    pieces = engine.pieces(SimpleNamespace(users=np.arange(users)), None, alone=False)
    assert np.concatenate(pieces).tolist() == list(range(users))
    assert max(map(len, pieces)) == most
    assert len(pieces) == count
