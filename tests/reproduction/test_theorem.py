"""The theorem: exact constants, trajectories that are the simulation's, verdicts that can fail."""

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from made_up_runs import silent
from torch import nn

from reproduction import theorem
from reproduction.ridge import Ridge, from_images, trajectories
from reproduction.verdicts import Verdict
from salf.core.layers import Layers
from salf.core.server import theorem_rate
from salf.data import Partition, Partitioned, Samples, synthetic
from salf.methods import method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Uniform


@pytest.fixture(scope="module")
def ridge():
    """Three users, one of them with more samples, six parameters."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(16, 6)) * np.linspace(0.5, 1.5, 6)
    shares = [np.arange(5), np.arange(5, 10), np.arange(10, 16)]
    return Ridge(inputs, rng.normal(size=16), Partition.of(shares), ridge=0.3, batch_size=2)


def objective(ridge, share, w):
    x, y = ridge.inputs[share], ridge.targets[share]
    return ((x @ w - y) ** 2).mean() / 2 + ridge.ridge * w @ w / 2


def gradient(ridge, share, w):
    x, y = ridge.inputs[share], ridge.targets[share]
    return x.T @ (x @ w - y) / len(share) + ridge.ridge * w


# The problem.


def test_the_optimum_has_no_gradient_and_the_gap_is_that_of_the_objective(ridge):
    def total(w):
        return np.mean([objective(ridge, share, w) for share in ridge.shares])

    best = ridge.optimum
    assert np.mean([gradient(ridge, s, best) for s in ridge.shares], 0) == pytest.approx(0)
    models = np.random.default_rng(1).normal(size=(4, 6))
    wanted = [total(w) - total(best) for w in models]
    assert ridge.gap(models) == pytest.approx(wanted, rel=1e-10)


def test_rho_are_the_extreme_curvatures_of_the_users(ridge):
    eigenvalues = []
    for share in ridge.shares:
        columns = [gradient(ridge, share, e) - gradient(ridge, share, 0 * e) for e in np.eye(6)]
        eigenvalues += np.linalg.eigvalsh(np.array(columns)).tolist()
    assert ridge.rho == pytest.approx((min(eigenvalues), max(eigenvalues)), rel=1e-10)


def test_heterogeneity_is_what_users_gain_with_models_of_their_own(ridge):
    gains = []
    for share in ridge.shares:
        x, y = ridge.inputs[share], ridge.targets[share]
        rows = np.vstack([x / np.sqrt(len(share)), np.sqrt(ridge.ridge) * np.eye(6)])
        own = np.linalg.lstsq(rows, np.append(y / np.sqrt(len(share)), np.zeros(6)))[0]
        gains.append(objective(ridge, share, ridge.optimum) - objective(ridge, share, own))
    assert ridge.heterogeneity == pytest.approx(np.mean(gains), rel=1e-9)
    assert ridge.heterogeneity > 0


def test_moments_of_gradients_are_those_over_all_batches(ridge):
    models = np.random.default_rng(2).normal(size=(3, 6))
    variances, squares = ridge.gradient_moments(models)
    for u, share in enumerate(ridge.shares):
        for i, w in enumerate(models):
            every = [gradient(ridge, np.array(b), w) for b in combinations(share, 2)]
            off = np.array(every) - gradient(ridge, share, w)
            assert variances[u, i] == pytest.approx((off**2).sum(1).mean(), rel=1e-10)
            assert squares[u, i] == pytest.approx((np.array(every) ** 2).sum(1).mean(), rel=1e-10)


# Trajectories.


class Blocks(nn.Module):
    """A linear model whose parameters are split into blocks, as layers."""

    def __init__(self, features, layers):
        super().__init__()
        self.width = features // layers
        zeros = torch.zeros(self.width, dtype=torch.float64)
        self.blocks = nn.ParameterList([nn.Parameter(zeros.clone()) for _ in range(layers)])

    def forward(self, x):
        return sum(
            part @ block for part, block in zip(x.split(self.width, 1), self.blocks, strict=True)
        )


@pytest.mark.parametrize("name", ["salf", "fedavg"])
def test_a_trajectory_is_that_of_the_simulation_with_its_seed(ridge, name):
    layers, rounds, seed = 3, 10, 7
    model = Blocks(6, layers)

    def loss(outputs, targets):
        penalty = sum((block**2).sum() for block in model.blocks)
        return (outputs - targets) ** 2 / 2 + ridge.ridge / 2 * penalty

    problem = Problem(
        model,
        Layers.of(model, [f"blocks.{i}" for i in range(layers)]),
        Partitioned(
            Samples(torch.from_numpy(ridge.inputs), torch.from_numpy(ridge.targets)), ridge.shares
        ),
        loss,
    )
    recipe = Recipe(theorem_rate(*ridge.rho), batch_size=2, engine="loop")
    world = AtDeadline(Uniform(3, layers))
    simulation = Simulation(problem, method(name), world, recipe, seed=seed)
    for models in trajectories(ridge, method(name), layers, [seed], rounds):
        there = torch.cat([block.detach() for block in model.blocks]).numpy()
        assert models[0] == pytest.approx(there, rel=1e-9, abs=1e-12)
        simulation.step()


# What is made of them.


def test_slope_and_scale_of_a_power_law():
    t, gamma = np.arange(1, 2001), 30.0
    gaps = np.stack([5 / (gamma + t), 2 / (gamma + t) ** 0.5], axis=1)
    gaps[:50] = 1.0  # the first rounds do not count
    assert theorem.slopes(gaps, gamma) == pytest.approx([-1, -0.5], rel=1e-10)
    assert theorem.late_scale(gaps, gamma)[0] == pytest.approx(5, rel=1e-10)


PROBLEM = {"users": 4, "features": 8, "spec": "dirichlet:1", "ridge": 0.5}


def test_the_constants_cover_every_model_that_was_visited():
    arguments = {
        "layers": 2,
        "samples": 500,
        "batch_size": 4,
        "problem": PROBLEM,
        "rounds": 30,
        "repeats": 3,
        "seed": 1,
    }
    found = theorem.measure("synthetic", "", "salf", **arguments, progress=silent)
    assert json.loads(json.dumps(found)) == found

    rng = np.random.default_rng(1)
    train = synthetic(0).train
    chosen = np.sort(rng.permutation(len(train))[:500])
    ridge = from_images(train.subset(chosen), batch_size=4, rng=rng, **PROBLEM)
    visited = np.concatenate(list(trajectories(ridge, method("salf"), 2, range(3), 30)))
    variances, squares = ridge.gradient_moments(visited)
    assert found["sigma2"] == pytest.approx(variances.max(1), rel=1e-12)
    assert found["G2"] == pytest.approx(squares.max(), rel=1e-12)
    gaps = ridge.gap(visited).reshape(30, 3)
    assert found["mean"] == pytest.approx(gaps.mean(1), rel=1e-12)
    assert found["distance2"] == pytest.approx((ridge.optimum**2).sum(), rel=1e-12)
    assert (found["users"], found["layers"]) == (4, 2)
    assert found["rho"] == pytest.approx(ridge.rho)


# Verdicts.


def made_up(scale=0.1, slope=-1.0, wobble=0.01, rounds=300, **more):
    """A method whose gap is scale/t, with 6 repeats; kappa = 2, gamma = 16."""
    t = np.arange(1, rounds + 1)
    off = np.linspace(-wobble, wobble, 6)
    return {
        "users": 10,
        "layers": 4,
        "rho": [1.0, 2.0],
        "Gamma": 0.1,
        "distance2": 1.0,
        "sigma2": [1.0] * 10,
        "G2": 2.0,
        "mean": (scale / t).tolist(),
        "high": (1.1 * scale / t).tolist(),
        "slopes": (slope + off).tolist(),
        "scales": (scale + off * scale).tolist(),
        **more,
    }


def judged(salf, fedavg=None):
    found = theorem.findings({"salf": salf, "fedavg": fedavg or made_up(0.05)})
    return [finding.verdict for finding in found]


def test_the_theorem_holds_on_a_small_gap_that_falls_like_one_over_t():
    assert judged(made_up()) == [Verdict.HOLDS] * 3


def test_a_gap_above_the_bound_at_one_t_is_not_under_it():
    salf = made_up()
    bound = theorem.Bound({"salf": salf, "fedavg": made_up()})
    salf["high"][122] = 1.001 * bound.at(123, "salf")
    found = theorem.findings({"salf": salf, "fedavg": made_up()})[0]
    assert found.verdict is Verdict.UNDECIDED  # the interval is on both sides of it
    assert "t = 123" in found.reason
    salf["mean"][122] = 1.0009 * bound.at(123, "salf")
    found = theorem.findings({"salf": salf, "fedavg": made_up()})[0]
    assert found.verdict is Verdict.FAILS


def test_the_bound_has_the_largest_constants_of_both_methods_and_c_for_salf_only():
    fedavg = made_up(G2=5.0, sigma2=[0.5] * 9 + [3.0])
    bound = theorem.Bound({"salf": made_up(), "fedavg": fedavg})
    assert bound.constants.G2 == 5.0
    assert list(bound.constants.sigma2) == [1.0] * 9 + [3.0]
    # By hand: B = 12/100 + 6*2*0.1, kappa = 2, gamma = 16, t = 5.
    wanted = 2 / 20 * (2 * 1.32 / 1 + 16 / 2)
    assert bound.at(5, "fedavg") == pytest.approx(wanted, rel=1e-12)
    assert bound.at(5, "salf") == pytest.approx(
        wanted + 2 / 20 * 2 * bound.constants.C(bound.federation), rel=1e-12
    )


@pytest.mark.parametrize(
    ("salf", "fedavg", "verdict"),
    [
        (-1.0, -1.0, Verdict.HOLDS),
        (-0.95, -1.0, Verdict.HOLDS),
        (-1.3, -1.3, Verdict.HOLDS),  # faster for a while, both
        (-1.3, -1.0, Verdict.IN_PART),  # faster, so not the same
        (-0.3, -1.0, Verdict.FAILS),
        (-0.3, -0.3, Verdict.IN_PART),  # the same, but not 1/t
        (-1.0, -2.0, Verdict.IN_PART),  # 1/t, but not the same
    ],
)
def test_slopes_decide_on_the_rate(salf, fedavg, verdict):
    assert judged(made_up(slope=salf), made_up(0.05, slope=fedavg))[1] is verdict


@pytest.mark.parametrize(
    ("salf", "fedavg"),
    [
        (made_up(0.05), None),  # costs nothing
        (made_up(50.0), None),  # more than C
        (made_up(wobble=0.4), None),  # slopes that are not known well
        (made_up(slope=-0.7), made_up(0.05, slope=-1.0)),  # another rate
    ],
)
def test_a_deadline_whose_cost_is_no_constant_factor_is_said(salf, fedavg):
    assert judged(salf, fedavg)[2] is Verdict.IN_PART
